// What all files of loops begin with: the compiler flags they need, and words for the compiler.
#pragma once

#ifndef __NO_MATH_ERRNO__
#if defined(__GNUC__) && !defined(__clang__)
#error "compile with -fno-math-errno: without it g++ does not vectorise sqrt (5 times slower)"
#endif
#endif
#ifdef __FAST_MATH__
#error "compile without -ffast-math: results must be the same bits on every instruction set"
#endif

#define INLINE inline __attribute__((always_inline))
// Not a copy in every loop of every optimizer: compiling would take twice as long.
#define SHARED __attribute__((noinline))
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define NOT_UNROLLED _Pragma("clang loop unroll(disable)")
#define NOT_VECTORISED _Pragma("clang loop vectorize(disable)")
#define ONE_BY_ONE __attribute__((noinline))
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define NOT_UNROLLED _Pragma("GCC unroll 1")
#define NOT_VECTORISED
#define ONE_BY_ONE __attribute__((noinline, optimize("no-tree-vectorize")))
#endif
