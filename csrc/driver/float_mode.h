// How a thread rounds and whether it flushes denormal numbers. torch.set_flush_denormal changes the calling thread alone, so
// results would depend on which thread of the pool takes what.
#pragma once

#include <cstdint>

namespace ingot {

class FloatMode {
 public:
  // That of this thread.
  static FloatMode current() { return FloatMode(read()); }
  void set() const { write(value_); }

 private:
  explicit FloatMode(uint64_t value) : value_(value) {}

#if defined(__x86_64__)
  static uint64_t read() { return __builtin_ia32_stmxcsr() & ~uint64_t{0x3f}; }  // without the exceptions seen so far
  static void write(uint64_t value) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
  static uint64_t read() {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t value_;
};

// Sets a mode until the end of a block.
class WithFloatMode {
 public:
  explicit WithFloatMode(const FloatMode& mode) : before_(FloatMode::current()) { mode.set(); }
  ~WithFloatMode() { before_.set(); }
  WithFloatMode(const WithFloatMode&) = delete;
  WithFloatMode& operator=(const WithFloatMode&) = delete;

 private:
  FloatMode before_;
};

}  // namespace ingot
