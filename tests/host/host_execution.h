// Runs CUDA kernels on the CPU, so that they can be tested without a GPU: include it before a kernel header that was
// compiled with PSDRL_HOST_EXECUTION, then host_execution::launch(grid, block, kernel, arguments...).
//
// Blocks run one after the other; the threads of a block are fibers of one host thread. A fiber runs until it reaches
// a barrier (__syncthreads, or the exchange of a warp) or ends; nobody passes a barrier before all have reached it.
// Which fiber runs first is chosen by `order`: a kernel that lacks a barrier gives different results in different
// orders. Waiting for a thread that will not come is reported and aborts.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static  // one block at a time

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

using std::isfinite;

inline void sincospi(double x, double* sine, double* cosine) {
  *sine = std::sin(M_PI * x);
  *cosine = std::cos(M_PI * x);
}

namespace host_execution {

enum class Order { forward, backward, shuffled };
enum class State { ready, at_block_barrier, at_warp_barrier, ended };

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 128 * 1024;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state = State::ready;
  dim3 index;
  unsigned exchanges = 0;  // of its warp so far
};

// Values that the lanes of a warp show each other; two sets, since a lane may start the next exchange before the
// slowest has read the last one.
struct Slots {
  double value[2][2][kWarp];
};

struct Machine {
  Order order = Order::forward;
  std::vector<Fiber> fibers;
  std::vector<Slots> warps;
  ucontext_t scheduler;
  size_t current = 0;
  std::function<void()> body;
};

inline Machine machine;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "host execution: %s (block %u, %u)\n", what, blockIdx.x, blockIdx.y);
  std::abort();
}

inline void wait(State state) {
  Fiber& fiber = machine.fibers[machine.current];
  fiber.state = state;
  swapcontext(&fiber.context, &machine.scheduler);
}

inline void run_fiber() {
  machine.body();
  machine.fibers[machine.current].state = State::ended;
  setcontext(&machine.scheduler);
}

// Lets all lanes of a warp go on if all have come; a warp with lanes missing cannot exchange.
inline bool release_warps() {
  bool released = false;
  for (size_t first = 0; first < machine.fibers.size(); first += kWarp) {
    size_t waiting = 0, lanes = std::min<size_t>(kWarp, machine.fibers.size() - first);
    for (size_t i = first; i < first + lanes; ++i) waiting += machine.fibers[i].state == State::at_warp_barrier;
    if (waiting == 0) continue;
    if (waiting != kWarp) fail("a warp exchange that not all 32 lanes reached");
    for (size_t i = first; i < first + lanes; ++i) machine.fibers[i].state = State::ready;
    released = true;
  }
  return released;
}

inline void run_block(const std::vector<size_t>& sequence) {
  for (;;) {
    bool alive = false;
    for (const size_t i : sequence) {
      Fiber& fiber = machine.fibers[i];
      if (fiber.state != State::ready) continue;
      machine.current = i;
      threadIdx = fiber.index;
      swapcontext(&machine.scheduler, &fiber.context);
    }
    if (release_warps()) continue;
    for (Fiber& fiber : machine.fibers) {
      if (fiber.state != State::at_block_barrier) continue;
      fiber.state = State::ready;
      alive = true;
    }
    if (!alive) return;
  }
}

// The order in which ready fibers run; shuffled by a fixed linear congruence, the same in every run.
inline std::vector<size_t> sequence(size_t count) {
  std::vector<size_t> result(count);
  std::iota(result.begin(), result.end(), size_t{0});
  if (machine.order == Order::backward) std::reverse(result.begin(), result.end());
  if (machine.order == Order::shuffled) {
    uint64_t state = 12345;
    for (size_t i = count; i > 1; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(result[i - 1], result[(state >> 33) % i]);
    }
  }
  return result;
}

template <typename Kernel, typename... Arguments>
void launch(dim3 grid, dim3 block, Kernel kernel, Arguments... arguments) {
  const size_t count = size_t{block.x} * block.y * block.z;
  gridDim = grid;
  blockDim = block;
  machine.body = [&] { kernel(arguments...); };
  machine.warps.resize((count + kWarp - 1) / kWarp);
  const std::vector<size_t> order = sequence(count);
  for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
    blockIdx = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    machine.fibers.resize(count);
    for (size_t i = 0; i < count; ++i) {
      Fiber& fiber = machine.fibers[i];
      if (!fiber.stack) fiber.stack.reset(new char[kStack]);
      fiber.state = State::ready;
      fiber.exchanges = 0;
      fiber.index = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, run_fiber, 0);
    }
    run_block(order);
  }
}

// Shows (a, b) to the warp and returns what all lanes show.
inline const double (&exchange(double a, double b))[2][kWarp] {
  Fiber& fiber = machine.fibers[machine.current];
  const size_t lane = machine.current % kWarp;
  auto& values = machine.warps[machine.current / kWarp].value[fiber.exchanges++ % 2];
  values[0][lane] = a;
  values[1][lane] = b;
  wait(State::at_warp_barrier);
  return values;
}

inline void mma_8x8x4(double (&c)[2], double a, double b) {
  const auto& values = exchange(a, b);
  const size_t lane = machine.current % kWarp;
  for (size_t e = 0; e < 2; ++e) {
    for (size_t d = 0; d < 4; ++d) c[e] += values[0][lane / 4 * 4 + d] * values[1][(lane % 4 * 2 + e) * 4 + d];
  }
}

}  // namespace host_execution

inline void __syncthreads() { host_execution::wait(host_execution::State::at_block_barrier); }

inline double __shfl_xor_sync(unsigned, double value, int mask) {
  const auto& values = host_execution::exchange(value, 0);
  return values[0][(host_execution::machine.current % host_execution::kWarp) ^ static_cast<unsigned>(mask)];
}
