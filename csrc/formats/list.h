// The list of weight formats, one row each. Everything that exists once per format is generated
// from this list: the DType constant, its name and sizes, reading, packing, the CPU kernel table,
// the CUDA kernels and their launches, and _core.weight_formats() for Python. CONTRIBUTING
// describes how to add a format.
//
// A row is FORMAT(DType constant, name, struct of the format's header, where). `where` is `cuda` if
// cuda/weights/ has kernels for the format. Otherwise it is `cpu_only`, and the CUDA backend
// converts weights of the format to int8 or bf16.
#pragma once

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/int4_zp.h"
#include "formats/int8.h"
#include "formats/iq4_nl.h"
#include "formats/iq4_xs.h"
#include "formats/mxfp4.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"

#define PB_FORMAT_ROWS(ROW, FORMAT)             \
  ROW(FORMAT, kInt8, int8, Int8, cuda)          \
  ROW(FORMAT, kInt4, int4, Int4, cuda)          \
  ROW(FORMAT, kInt4Zp, int4_zp, Int4Zp, cuda)   \
  ROW(FORMAT, kQ4K, q4_k, Q4K, cuda)            \
  ROW(FORMAT, kQ5K, q5_k, Q5K, cuda)            \
  ROW(FORMAT, kQ6K, q6_k, Q6K, cuda)            \
  ROW(FORMAT, kMxfp4, mxfp4, Mxfp4, cuda)       \
  ROW(FORMAT, kQ5_0, q5_0, Q5_0, cpu_only)      \
  ROW(FORMAT, kIQ4_NL, iq4_nl, Iq4Nl, cpu_only) \
  ROW(FORMAT, kFp8, fp8, Fp8, cpu_only)         \
  ROW(FORMAT, kQ4_1, q4_1, Q4_1, cuda)          \
  ROW(FORMAT, kQ5_1, q5_1, Q5_1, cuda)          \
  ROW(FORMAT, kIQ4_XS, iq4_xs, Iq4Xs, cuda)     \
  ROW(FORMAT, kQ2K, q2_k, Q2K, cuda)            \
  ROW(FORMAT, kQ3K, q3_k, Q3K, cuda)

// Expands to FORMAT(constant, name, Format) for every format.
#define PB_FORMATS(FORMAT) PB_FORMAT_ROWS(PB_ANY_ROW, FORMAT)
#define PB_ANY_ROW(FORMAT, constant, name, Format, where) FORMAT(constant, name, Format)

// Expands to FORMAT(constant, name, Format) for every format that has CUDA kernels.
#define PB_CUDA_FORMATS(FORMAT) PB_FORMAT_ROWS(PB_CUDA_ROW, FORMAT)
#define PB_CUDA_ROW(FORMAT, constant, name, Format, where) \
  PB_CUDA_ROW_##where(FORMAT, constant, name, Format)
#define PB_CUDA_ROW_cuda(FORMAT, constant, name, Format) FORMAT(constant, name, Format)
#define PB_CUDA_ROW_cpu_only(FORMAT, constant, name, Format)
