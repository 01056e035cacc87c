// Reports the features that csrc/cpu/dispatch/cpuid.cc finds on this CPU, and AMX tiles, which
// instructions-inl.h emulates.
#define x86_features features_but_tiles
#define may_use_tiles may_use_real_tiles
#include "../../../csrc/cpu/dispatch/cpuid.cc"
#undef x86_features
#undef may_use_tiles

namespace pb::cpu {

const X86Features& x86_features() {
  static const X86Features features = [] {
    X86Features f = features_but_tiles();
    f.amx_tile = f.amx_bf16 = f.amx_int8 = true;
    return f;
  }();
  return features;
}

bool may_use_tiles() { return true; }

}  // namespace pb::cpu
