// The choice of instruction set, made once when the module is loaded.
#include <array>
#include <cstdlib>
#include <cstring>

#include "tensors.h"

namespace ingot {
namespace {

struct Choice {
  const Kernels* kernels;
  bool supported;
};

// From the best to the one that every machine has.
#ifdef INGOT_X86
std::array<Choice, 3> choices() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return {{{&kAvx512, avx2 && avx512}, {&kAvx2, avx2}, {&kBaseline, true}}};
}
#else
std::array<Choice, 1> choices() { return {{{&kBaseline, true}}}; }
#endif

}  // namespace

const Kernels* choose_kernels() {
  const char* wanted = std::getenv("INGOT_ISA");
  for (const Choice& choice : choices()) {
    if (wanted != nullptr && *wanted != '\0') {
      if (std::strcmp(wanted, choice.kernels->name) != 0) continue;
      if (choice.supported) return choice.kernels;
      PyErr_Format(PyExc_ImportError, "INGOT_ISA=%s, but this machine does not have it", wanted);
      return nullptr;
    }
    if (choice.supported) return choice.kernels;
  }
  PyErr_Format(PyExc_ImportError, "INGOT_ISA=%s is not one of the instruction sets built in", wanted);
  return nullptr;
}

}  // namespace ingot
