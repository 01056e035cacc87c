/* Included before everything when gcc builds llama.cpp (make rival-llamacpp).
 *
 * The AMX intrinsics of gcc 12 do not tell the compiler that they read memory: _tile_loadconfig
 * names 8 of its 64 bytes, _tile_loadd none. What was stored there just before is then dropped, and
 * llama.cpp's int8 and int4 products end in a segmentation fault. Here they say so. */
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>

#define _tile_loadconfig(config) \
  __asm__ volatile("ldtilecfg %0" : : "m"(*(const char (*)[64])(config)) : "memory")

#undef _tile_loadd
#define _tile_loadd(dst, base, stride)                            \
  do {                                                            \
    __asm__ volatile("" : : "r"((const void*)(base)) : "memory"); \
    _tile_loadd_internal(dst, base, stride);                      \
  } while (0)
#endif
