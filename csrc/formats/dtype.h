// The element types of tensors and matrices: f32, bf16, f16 and the weight formats
// (formats/list.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/half.h"
#include "formats/list.h"

namespace pb {

#define PB_CONSTANT(constant, name, Format) constant,
enum class DType : uint8_t { kF32, kBF16, kF16, PB_FORMATS(PB_CONSTANT) };
#undef PB_CONSTANT

#define PB_CONSTANT(constant, name, Format) DType::constant,
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                                       PB_FORMATS(PB_CONSTANT)};
#undef PB_CONSTANT

// The DType constant of a format's struct.
template <typename Format>
inline constexpr DType kDTypeOf = DType::kF32;
#define PB_DTYPE_OF(constant, name, Format) \
  template <>                               \
  inline constexpr DType kDTypeOf<Format> = DType::constant;
PB_FORMATS(PB_DTYPE_OF)
#undef PB_DTYPE_OF

constexpr bool is_quantised(DType t) { return t > DType::kF16; }

// Returns visit(Format()) for the struct of the format `t`, which must be quantised.
template <typename Visit>
constexpr auto with_format(DType t, Visit&& visit) {
  switch (t) {
#define PB_CASE(constant, name, Format) \
  case DType::constant:                 \
    return visit(Format());
    PB_FORMATS(PB_CASE)
#undef PB_CASE
    default:
      return visit(Int8());  // unreachable: f32, bf16 and f16 have no struct
  }
}

// True if numbers are never rounded to the format `t`, so that a matrix has it only if its tensors
// do.
constexpr bool is_native_only(DType t) {
  return is_quantised(t) && with_format(t, [](auto format) { return format.kNativeOnly; });
}
// True if an int8 matrix represents the numbers of every group of `t` exactly.
constexpr bool int8_holds(DType t) {
  return is_quantised(t) && with_format(t, [](auto format) { return format.kInt8Holds; });
}

// The number of elements in a block of a quantised dtype, and the bytes of the block in a file.
constexpr int block_elements(DType t) {
  return with_format(t, [](auto format) { return format.kElements; });
}
constexpr size_t block_bytes(DType t) {
  return with_format(t, [](auto format) { return sizeof(typename decltype(format)::Block); });
}
constexpr bool in_super_blocks(DType t) {
  return is_quantised(t) && block_elements(t) == kSuperBlock;
}

// The bytes of a number of a dtype that is not quantised.
constexpr size_t dtype_size(DType t) { return t == DType::kF32 ? 4 : 2; }

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
#define PB_CASE(constant, name, Format) \
  case DType::constant:                 \
    return #name;
      PB_FORMATS(PB_CASE)
#undef PB_CASE
  }
  return "?";
}

}  // namespace pb
