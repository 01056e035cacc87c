// Groups of quantised weights, written to rows as weight_formats.h has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"
#include "formats/mxfp4.h"
#include "formats/quantise.h"
#include "formats/super_block.h"

namespace pb::cuda {

// A row of a weight in host memory, zeros before its groups are written.
struct PackedRow {
  std::byte* values;
  std::byte* scales;
  int n_tiles;  // of kScaleTile numbers, the last one not always whole
};

// Writes group number `index` of a row. dtype: that of the weight.
void write_group(const Int8Group& group, DType dtype, int64_t index, const PackedRow& to);
void write_group(const Int4Group& group, DType dtype, int64_t index, const PackedRow& to);
void write_group(const Int4ZpGroup& group, DType dtype, int64_t index, const PackedRow& to);
void write_group(const Mxfp4Group& group, DType dtype, int64_t index, const PackedRow& to);
void write_group(const SuperGroup& group, DType dtype, int64_t index, const PackedRow& to);

}  // namespace pb::cuda
