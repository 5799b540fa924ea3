// Which instruction set the CPU kernels use, and how one kernel is compiled for each of them.
//
// A kernel is a body: a struct with `template <class Set> void operator()(...) const`, always inlined, written with the
// vectors and the register blocking of its Set. `run` calls the body compiled for the set of this machine, so the build
// stays portable. PSDRL_CPU=avx512|avx2|portable asks for a set, for tests and measurements; one that the machine lacks
// is refused when the first kernel runs.
#pragma once

#include <utility>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PSDRL_SANITIZE)
#define PSDRL_X86 1
#endif
#define PSDRL_INLINE inline __attribute__((always_inline))

namespace psdrl {

enum class Isa { kPortable, kAvx2, kAvx512 };

Isa isa();              // of this process, asked once
const char* isa_name();  // avx512, avx2 or portable

// Floats per vector, and vectors that fit into the registers.
struct Portable {  // SSE2, NEON
  static constexpr int kLanes = 4, kRegisters = 16;
};
struct Avx2 {
  static constexpr int kLanes = 8, kRegisters = 16;
};
struct Avx512 {
  static constexpr int kLanes = 16, kRegisters = 32;
};

#ifdef PSDRL_X86
template <class Body, class... Args>
__attribute__((target("arch=x86-64-v4"))) void run_avx512(const Body& body, Args... args) {
  body.template operator()<Avx512>(args...);
}
template <class Body, class... Args>
__attribute__((target("arch=x86-64-v3"))) void run_avx2(const Body& body, Args... args) {
  body.template operator()<Avx2>(args...);
}
#endif

template <class Body, class... Args>
void run(const Body& body, Args... args) {
#ifdef PSDRL_X86
  if (isa() == Isa::kAvx512) return run_avx512(body, args...);
  if (isa() == Isa::kAvx2) return run_avx2(body, args...);
#endif
  body.template operator()<Portable>(args...);
}

}  // namespace psdrl
