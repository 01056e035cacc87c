// Speed of the CPU's matrix products against what the machine can do at most, in one run:
//   bench_kernels [--target NAME] [--threads N] [--mib N] [--rows 1,8,512] [--dtypes bf16,int8]
//                 [--products o,down]
//
// Each line it prints is a JSON object: first the machine, then one a product. Passes over the
// weights of a product and plain reads of as many bytes take turns, and `of_read` is the median of
// neighbouring pairs: how much of the bandwidth that there was at that moment the product used.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/cpu_backend.h"
#include "formats/dtype.h"
#include "machine_limits.h"

namespace {

using namespace pb;

struct Options {
  std::string target;
  std::string dtypes = "f32,bf16,int8,int4,q4_k,q5_k,q6_k,mxfp4";
  std::string rows = "1,4,8,16,32,128,512";
  std::string products = "o,gate_up,down,head";
  int threads = 0;
  int mebibytes = 256;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--target") o.target = value;
    if (name == "--dtypes") o.dtypes = value;
    if (name == "--rows") o.rows = value;
    if (name == "--products") o.products = value;
    if (name == "--threads") o.threads = std::stoi(value);
    if (name == "--mib") o.mebibytes = std::stoi(value);
  }
  return o;
}

DType dtype_of(const std::string& name) {
  for (const DType dtype : kAllDTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument("no dtype is called " + name);
}

struct Shape {
  const char* name;
  int n_out;
  int n_in;
};

// Of the 1B Llama shape.
constexpr std::array kShapes = {Shape{"o", 2048, 2048}, Shape{"gate_up", 16384, 2048},
                                Shape{"down", 2048, 8192}, Shape{"head", 128256, 2048}};
constexpr int kMostHeadRows = 32;  // the head never sees a whole prefill

std::vector<uint16_t> random_bf16(size_t count) {
  std::vector<uint16_t> values(count);
  uint32_t state = 1;
  for (uint16_t& v : values) {
    state = state * 1664525u + 1013904223u;
    v = f32_to_bf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-37f);  // +-2^-6
  }
  return values;
}

// Such blocks cannot be made of numbers here: random bytes, with scales that are finite.
PackedMatrix packed_blocks(Backend& backend, const Shape& shape, DType dtype) {
  const size_t n_blocks =
      size_t(shape.n_out) * size_t(shape.n_in) / static_cast<size_t>(block_elements(dtype));
  std::vector<std::byte> bytes(n_blocks * block_bytes(dtype));
  uint32_t state = 1;
  for (std::byte& b : bytes)
    b = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  constexpr uint16_t kScales[2] = {0x1000, 0x1000};  // 2^-11
  for (size_t i = 0; i < n_blocks; ++i) {
    std::byte* block = &bytes[i * block_bytes(dtype)];
    if (dtype == DType::kMxfp4) {
      *block = std::byte{117};  // 2^-10
    } else if (dtype == DType::kFp8) {
      constexpr float kScale = 0x1p-7f;
      std::memcpy(block, &kScale, sizeof(kScale));
      for (int j = 0; j < kFp8Block; ++j) block[sizeof(kScale) + j] &= std::byte{0xbf};  // below 2
    } else if (dtype == DType::kQ6K) {
      std::memcpy(block + offsetof(Q6KBlock, d), kScales, sizeof(uint16_t));
    } else {
      std::memcpy(block, kScales, sizeof(kScales));
    }
  }
  const TensorView part{"w", bytes.data(), dtype, shape.n_out, shape.n_in, shape.n_in, 1};
  const TensorView no_bias;
  return backend.pack({&part, 1}, {&no_bias, 1}, dtype);
}

PackedMatrix packed_matrix(Backend& backend, const Shape& shape,
                           const std::vector<uint16_t>& values, DType dtype) {
  if (is_native_only(dtype)) return packed_blocks(backend, shape, dtype);
  const TensorView part{"w", values.data(), DType::kBF16, shape.n_out, shape.n_in, shape.n_in, 1};
  const TensorView no_bias;
  return backend.pack({&part, 1}, {&no_bias, 1}, dtype);
}

// The same weights elsewhere in memory, which is faster than packing them again.
PackedMatrix copy_of(const PackedMatrix& m) {
  PackedMatrix copy;
  copy.n_out = m.n_out;
  copy.n_in = m.n_in;
  copy.dtype = m.dtype;
  copy.compressed = m.compressed;
  copy.packed = AlignedBuffer(m.packed.bytes());
  std::memcpy(copy.packed.as<std::byte>(), m.packed.as<std::byte>(), m.packed.bytes());
  return copy;
}

// Rows as the model makes them: the output of a norm.
Activations make_rows(Backend& backend, int rows, int n_in, DType dtype) {
  const std::vector<float> ones(static_cast<size_t>(n_in), 1.0f);
  std::vector<float> x(static_cast<size_t>(n_in) * static_cast<size_t>(rows));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 251) - 125.0f;
  const Norm norm{NormKind::kRms, 1e-5f,
                  backend.make_vector({"ones", ones.data(), DType::kF32, n_in, 1, 1, 1}), Vector{}};
  Activations out = backend.make_activations(rows, n_in, dtype);
  backend.norm(Buffer(x.data(), x.size() * sizeof(float), nullptr), {.n = rows}, norm, out);
  return out;
}

void measure(Backend& backend, ThreadPool& pool, const AlignedBuffer& readable, const Shape& shape,
             DType dtype, const std::vector<Matrix>& matrices, int rows) {
  const Activations x = make_rows(backend, rows, shape.n_in, dtype);
  // On a line's border, as the engine's: elsewhere many rows of results cannot bypass the caches.
  Buffer y = backend.make_buffer(sizeof(float) * static_cast<size_t>(rows) *
                                 static_cast<size_t>(shape.n_out));
  const double product_bytes = static_cast<double>(matrices[0].packed.bytes());
  const size_t passes = rows >= 128 ? 1 : matrices.size();
  std::vector<double> seconds, of_read;
  const double start = bench::now();
  for (size_t i = 0; seconds.size() < 3 || bench::now() - start < 0.3; ++i) {
    const double read_rate =
        static_cast<double>(readable.bytes()) / bench::read_once(pool, readable);
    const double begin = bench::now();
    for (size_t p = 0; p < passes; ++p) {
      backend.matmul(x, rows, matrices[(i + p) % matrices.size()], y, Store::kSet);
    }
    const double each = (bench::now() - begin) / static_cast<double>(passes);
    seconds.push_back(each);
    of_read.push_back(product_bytes / each / read_rate);
  }
  const double each = bench::median(seconds);
  std::printf(
      "{\"dtype\": \"%s\", \"product\": \"%s\", \"n_out\": %d, \"n_in\": %d, \"rows\": %d, "
      "\"ms\": %.4f, \"gb_s\": %.2f, \"of_read\": %.4f, \"gop_s\": %.1f}\n",
      dtype_name(dtype), shape.name, shape.n_out, shape.n_in, rows, each * 1e3,
      product_bytes / each / 1e9, bench::median(of_read),
      2.0 * shape.n_out * shape.n_in * rows / each / 1e9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto backend = make_cpu_backend(options.threads, options.target);
  ThreadPool pool(backend->n_threads());
  const size_t held_bytes = static_cast<size_t>(options.mebibytes) << 20;
  const AlignedBuffer readable = bench::make_readable(held_bytes);
  std::printf("{\"target\": \"%s\", \"threads\": %d, \"mib\": %d, \"peak_gop_s\": {",
              backend->target().c_str(), backend->n_threads(), options.mebibytes);
  const char* separator = "";
  for (const bench::Peak& peak : bench::peaks(pool)) {
    std::printf("%s\"%s\": %.0f", separator, peak.name, peak.gop_s);
    separator = ", ";
  }
  std::printf("}}\n");
  std::fflush(stdout);

  const std::vector<std::string> products = split(options.products);
  for (const Shape& shape : kShapes) {
    if (std::ranges::find(products, shape.name) == products.end()) continue;
    const auto values = random_bf16(static_cast<size_t>(shape.n_out) * shape.n_in);
    for (const std::string& dtype_text : split(options.dtypes)) {
      const DType dtype = dtype_of(dtype_text);
      // Copies enough that the caches do not hold them all.
      PackedMatrix packed = packed_matrix(*backend, shape, values, dtype);
      const size_t copies = held_bytes / packed.packed.bytes();
      std::vector<Matrix> matrices;
      while (matrices.size() + 1 < copies) matrices.push_back(backend->place(copy_of(packed)));
      matrices.push_back(backend->place(std::move(packed)));
      for (const std::string& rows_text : split(options.rows)) {
        const int rows = std::stoi(rows_text);
        if (shape.n_out > 100'000 && rows > kMostHeadRows) continue;
        measure(*backend, pool, readable, shape, dtype, matrices, rows);
      }
    }
  }
}
