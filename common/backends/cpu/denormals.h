// Denormal numbers count as zero while kernels run.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace attn {

/// While a FlushDenormals lives, this thread's arithmetic takes denormal operands and results as zero, as kernels on
/// GPUs do. Otherwise many operations on denormals would take a microcode assist on x86 cores, and a kernel's time
/// would depend on the data. On processors other than x86-64 and AArch64 a FlushDenormals does nothing.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(get()) { set(saved_ | flush_bits); }
  ~FlushDenormals() { set(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t flush_bits = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t control) { _mm_setcsr(static_cast<unsigned>(control)); }
#elif defined(__aarch64__)
  static constexpr uint64_t flush_bits = 1u << 24;  // FPCR: FZ
  static uint64_t get() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
  static constexpr uint64_t flush_bits = 0;
  static uint64_t get() { return 0; }
  static void set(uint64_t) {}
#endif
  const uint64_t saved_;
};

}  // namespace attn
