#include "isa.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace psdrl {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

Isa best() {
#ifdef PSDRL_X86
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd")) {
    return Isa::kAvx512;
  }
  if (v3) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

Isa chosen() {
  const char* asked = std::getenv("PSDRL_CPU");
  if (!asked || !*asked) return best();
  for (int i = 0; i < 3; ++i) {
    if (std::string(asked) != kNames[i]) continue;
    TORCH_CHECK(i <= static_cast<int>(best()), "PSDRL_CPU=", asked, ": this CPU has ", kNames[static_cast<int>(best())],
                " at most");
    return static_cast<Isa>(i);
  }
  TORCH_CHECK(false, "PSDRL_CPU must be avx512, avx2 or portable, not ", asked);
}

}  // namespace

Isa isa() {
  static const Isa set = chosen();
  return set;
}

const char* isa_name() { return kNames[static_cast<int>(isa())]; }

}  // namespace psdrl
