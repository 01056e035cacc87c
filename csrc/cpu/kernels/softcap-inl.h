// Soft caps, which bound scores and logits: x -> cap tanh(x / cap) (Gemma team 2024,
// arXiv:2408.00118). Each number is computed independently of its neighbours.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/math-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

PB_INLINE Vec soft_cap(Vec x, Vec cap) { return mul(tanh(div(x, cap)), cap); }

// Scales and caps the scores of keys [begin, end), and some neighbours in their vectors, if the
// layer has a soft cap. Returns the scale that is still to be applied.
PB_INLINE float cap_scores(const AttentionArgs& args, float* scores, int begin, int end) {
  if (args.softcap == 0.0f) return args.scale;
  const Vec scale = set1(args.scale);
  const Vec cap = set1(args.softcap);
  for (int i = begin / kWidth * kWidth; i < end; i += kWidth) {
    store(scores + i, soft_cap(mul(load(scores + i), scale), cap));
  }
  return 1.0f;
}

inline void scale_logits(float* logits, int begin, int end, float scale, float softcap) {
  const Vec factor = set1(scale);
  const Vec cap = set1(softcap);
  for (int i = begin; i < end; i += kWidth) {
    const Vec v = mul(load_tail(logits, i, end), factor);
    store_tail(logits, i, end, softcap == 0.0f ? v : soft_cap(v, cap));
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
