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

// SGD with momentum over 256 tensors of 32 K elements, one thread, Zen 5 of AMD: 2.35 ms without prefetches, 2.65 with them, and
// over BERT-base 36.4 and 37.9. Not measured on other processors; AMD's earlier ones are taken to be like this one.
bool reads_few_ahead_itself() {
#ifdef INGOT_X86
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace

const Kernels* choose_kernels() {
  reads_few_ahead = reads_few_ahead_itself();
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
