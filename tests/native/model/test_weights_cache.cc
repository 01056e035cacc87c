// load_weights with a cache: what the second start has is what the first one packed, bit for bit.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/hash64.h"
#include "check.h"
#include "cpu_fixture.h"
#include "device_double.h"
#include "model/weights.h"
#include "random_blocks.h"
#include "random_fp8.h"
#include "random_mxfp4.h"
#include "temporary_directory.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

using Bytes = std::vector<std::byte>;

template <typename AnyMatrix>
Bytes bytes_of(const AnyMatrix& m) {
  Bytes all;
  for (const auto* part : {&m.packed, &m.bias}) {
    const auto* bytes = part->template as<std::byte>();
    all.insert(all.end(), bytes, bytes + part->bytes());
  }
  return all;
}

std::vector<Bytes> matrices(const Weights& w) {
  std::vector<Bytes> all = {bytes_of(w.token_embedding)};
  if (w.position_embedding) all.push_back(bytes_of(*w.position_embedding));
  if (w.head) all.push_back(bytes_of(*w.head));
  for (const LayerWeights& layer : w.layers) {
    for (const Matrix* m : {&layer.qkv[0], &layer.o, &layer.gate_up[0], &layer.down}) {
      all.push_back(bytes_of(*m));
    }
  }
  return all;
}

LoadOptions cached_in(const TemporaryDirectory& directory, const std::string& key = "key") {
  LoadOptions options;
  options.cache = {.directory = directory.path(), .name = "model", .key = key};
  return options;
}

bool was_found(const Weights& weights) {
  return weights.cache.state == "mapped" || weights.cache.state == "copied";
}

std::unique_ptr<Backend> best_backend() { return make_cpu_backend(2, ""); }

}  // namespace

TEST(a_second_start_has_what_the_first_one_packed) {
  for (const TinyModel& model : {rotary_model(), learned_model()}) {
    for (const cpu::Kernels* target : runnable_targets()) {
      const TemporaryDirectory directory;
      for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
        const auto backend = make_cpu_backend(2, target->name);
        const auto load = [&](const LoadOptions& options) {
          return load_weights(model.config, model.tensors, dtype, *backend, options);
        };
        const Weights plain = load({});
        EXPECT_EQ(plain.cache.state, "off");
        const Weights first = load(cached_in(directory));
        EXPECT_EQ(first.cache.state, "written");
        EXPECT_EQ(first.cache.problem, "");
        const Weights second = load(cached_in(directory));
        EXPECT(was_found(second));
        EXPECT_EQ(second.cache.problem, "");
        EXPECT(matrices(first) == matrices(plain));
        EXPECT(matrices(second) == matrices(plain));
        EXPECT_EQ(second.bytes(), plain.bytes());
      }
      EXPECT_EQ(directory.names().size(), 4u);
    }
  }
}

// Compressed matrices and plain ones have other sizes, and only what they hold says which is which.
TEST(a_matrix_that_cannot_be_compressed_beside_compressed_ones) {
  TinyModel model = rotary_model();
  const std::string odd = "layers.1.down.weight";
  const TensorView& view = model.tensors.at(odd);
  for (int64_t i = 0; i < view.rows * view.cols; ++i) {
    model.values(odd)[i] = std::ldexp(1.0f, integer(1, static_cast<uint64_t>(i), 100) - 90);
  }
  for (const cpu::Kernels* target : runnable_targets()) {
    const TemporaryDirectory directory;
    const auto backend = make_cpu_backend(2, target->name);
    const auto load = [&] {
      return load_weights(model.config, model.tensors, DType::kBF16, *backend,
                          cached_in(directory));
    };
    const Weights first = load();
    const Weights second = load();
    EXPECT(was_found(second));
    EXPECT(matrices(second) == matrices(first));
    for (const Weights* weights : {&first, &second}) {
      EXPECT_EQ(weights->layers[0].down.compressed, backend->compresses(DType::kBF16));
      EXPECT(!weights->layers[1].down.compressed);
    }
  }
}

TEST(another_checkpoint_or_target_has_another_file) {
  const TinyModel model = rotary_model();
  const TemporaryDirectory directory;
  const auto state = [&](Backend& backend, const std::string& key) {
    return load_weights(model.config, model.tensors, DType::kF32, backend,
                        cached_in(directory, key))
        .cache.state;
  };
  size_t n_files = 0;
  for (const cpu::Kernels* target : runnable_targets()) {
    const auto backend = make_cpu_backend(1, target->name);
    for (const char* key : {"one", "two"}) {
      EXPECT_EQ(state(*backend, key), "written");
      EXPECT_EQ(directory.names().size(), ++n_files);
    }
  }
}

// What is kept is what was packed on the host, wherever it is computed with.
TEST(a_device_with_memory_of_its_own_has_the_same_file) {
  const TinyModel model = learned_model();
  const TemporaryDirectory directory;
  const auto load = [&](Backend& backend) {
    return load_weights(model.config, model.tensors, DType::kBF16, backend, cached_in(directory));
  };
  const auto cpu = best_backend();
  DeviceDouble device(best_backend());
  Heartbeat heartbeat;
  const Weights written = load(device);
  EXPECT_EQ(written.cache.state, "written");
  const Weights found = load(*cpu);
  EXPECT(was_found(found));
  const Weights again = load(device);
  EXPECT(was_found(again));
  EXPECT_EQ(again.bytes(), found.bytes());
  for (const Weights* weights : {&written, &again}) {
    Bytes bytes(weights->layers[1].qkv[0].packed.bytes());
    device.download(weights->layers[1].qkv[0].packed, bytes);
    device.finish(heartbeat);
    const auto* expected = found.layers[1].qkv[0].packed.as<std::byte>();
    EXPECT(std::equal(bytes.begin(), bytes.end(), expected));
  }
}

TEST(a_damaged_file_is_told_and_replaced) {
  const TinyModel model = learned_model();
  const TemporaryDirectory directory;
  const auto backend = best_backend();
  const auto load = [&] {
    return load_weights(model.config, model.tensors, DType::kF32, *backend, cached_in(directory));
  };
  const auto expected = matrices(load());
  const std::string path = directory.path() + "/" + directory.names().front();
  const std::string whole = read_file(path);
  std::string flipped = whole;
  flipped[5000] ^= 1;
  for (const std::string& damaged : {flipped, whole.substr(0, 5000), std::string("x")}) {
    write_file(path, damaged);
    const Weights weights = load();
    EXPECT_EQ(weights.cache.state, "written");
    EXPECT(weights.cache.problem.starts_with(path + ": is "));
    EXPECT(matrices(weights) == expected);
    EXPECT(was_found(load()));
  }
}

// Whole and with the right key, but of another length: as if the layout had changed without a new
// version.
TEST(a_file_that_does_not_fit_the_shapes_is_replaced) {
  const TemporaryDirectory directory;
  const auto backend = best_backend();
  TinyModel model = rotary_model();
  load_weights(model.config, model.tensors, DType::kF32, *backend, cached_in(directory));
  for (int vocab_size : {3000, 61}) {
    model.config.vocab_size = vocab_size;
    model.add("token_embedding", vocab_size, model.config.hidden_size);
    model.add("head.weight", vocab_size, model.config.hidden_size);
    const Weights weights =
        load_weights(model.config, model.tensors, DType::kF32, *backend, cached_in(directory));
    EXPECT_EQ(weights.cache.state, "written");
    EXPECT(weights.cache.problem.find("than the weights") != std::string::npos);
  }
}

TEST(no_directory_is_told_and_no_error) {
  const TinyModel model = rotary_model();
  const auto backend = best_backend();
  LoadOptions options;
  options.cache = {.directory = "/nonexistent", .name = "model", .key = "key"};
  const Weights weights = load_weights(model.config, model.tensors, DType::kF32, *backend, options);
  EXPECT_EQ(weights.cache.state, "failed");
  EXPECT(weights.cache.problem.ends_with("No such file or directory"));
}

TEST(progress_ends_at_the_whole_and_may_end_the_load) {
  TinyModel model = rotary_model();
  int64_t total = 0;
  for (auto& [name, view] : model.tensors) total += view.bytes = view.rows * view.cols * 4;
  const TemporaryDirectory directory;
  const auto backend = best_backend();
  LoadOptions options = cached_in(directory);
  for (const char* state : {"written", "found"}) {
    int64_t last = 0;
    options.progress = [&](int64_t done, int64_t of) {
      EXPECT(done > last);
      EXPECT_EQ(of, total);
      last = done;
    };
    const Weights weights =
        load_weights(model.config, model.tensors, DType::kF32, *backend, options);
    EXPECT_EQ(last, total);
    EXPECT_EQ(was_found(weights), std::string(state) == "found");
  }
  options.cache.key = "another";
  options.progress = [&](int64_t done, int64_t) {
    if (done > total / 2) throw 7;
  };
  int caught = 0;
  try {
    load_weights(model.config, model.tensors, DType::kF32, *backend, options);
  } catch (int thrown) {
    caught = thrown;
  }
  EXPECT_EQ(caught, 7);
  EXPECT_EQ(directory.names().size(), 1u);  // half a file is no file
}

// Packed weights outlive the program that made them. If this fails, the layout has changed: raise
// the layout's version (cpu/weights/pack.h), then put the hashes that are printed here.
TEST(the_layout_is_the_one_of_its_version) {
  const std::map<std::string, uint64_t> expected = {
      {"avx512_amx 6 f32", 0x7ad879b7c6626e11u},   {"avx512_amx 6 bf16", 0x775561052106163fu},
      {"avx512_amx 6 int8", 0x24721ea1909e7222u},  {"avx512_amx 6 int4", 0x74816c113b20f8bfu},
      {"avx512_bf16 6 f32", 0x7ad879b7c6626e11u},  {"avx512_bf16 6 bf16", 0x3ecddaf02f2b9a6au},
      {"avx512_bf16 6 int8", 0x24721ea1909e7222u}, {"avx512_bf16 6 int4", 0x437b9291c2712d40u},
      {"avx512_vnni 6 f32", 0x7ad879b7c6626e11u},  {"avx512_vnni 6 bf16", 0x3ecddaf02f2b9a6au},
      {"avx512_vnni 6 int8", 0x24721ea1909e7222u}, {"avx512_vnni 6 int4", 0x437b9291c2712d40u},
      {"avx512 6 f32", 0x7ad879b7c6626e11u},       {"avx512 6 bf16", 0x3ecddaf02f2b9a6au},
      {"avx512 6 int8", 0x24721ea1909e7222u},      {"avx512 6 int4", 0x437b9291c2712d40u},
      {"avx_vnni 6 f32", 0x30664860b8177a6cu},     {"avx_vnni 6 bf16", 0x08a9626b7ee1a1bcu},
      {"avx_vnni 6 int8", 0x5a1efc05bfd3db44u},    {"avx_vnni 6 int4", 0x7beabd26a1c69353u},
      {"avx2 6 f32", 0x30664860b8177a6cu},         {"avx2 6 bf16", 0x08a9626b7ee1a1bcu},
      {"avx2 6 int8", 0x5a1efc05bfd3db44u},        {"avx2 6 int4", 0x7beabd26a1c69353u},
      {"neon_i8mm 6 f32", 0xe510a634d54f58f9u},    {"neon_i8mm 6 bf16", 0xcd5d40523e5cab77u},
      {"neon_i8mm 6 int8", 0x5a1efc05bfd3db44u},   {"neon_i8mm 6 int4", 0x7beabd26a1c69353u},
      {"neon 6 f32", 0xe510a634d54f58f9u},         {"neon 6 bf16", 0xcd5d40523e5cab77u},
      {"neon 6 int8", 0x5a1efc05bfd3db44u},        {"neon 6 int4", 0x7beabd26a1c69353u},
      {"scalar 6 f32", 0xe510a634d54f58f9u},       {"scalar 6 bf16", 0x3111aae79dc45267u},
      {"scalar 6 int8", 0xbb2477497af5b8b6u},      {"scalar 6 int4", 0xa81aa2867a5629fdu},
  };
  constexpr int kOut = 150, kIn = 97;  // no multiple of anything
  const auto values = numbers(kOut * kIn, 5);
  const auto bias = numbers(kOut, 6);
  for (const cpu::Kernels* target : runnable_targets()) {
    const auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      const std::vector parts = {view_of(values, kOut, kIn)};
      const std::vector biases = {view_of(bias, kOut, 1)};
      const PackedMatrix matrix = backend->pack(parts, biases, dtype);
      const MatrixBytes sizes = backend->matrix_bytes(kOut, kIn, dtype, matrix.compressed);
      EXPECT_EQ(matrix.packed.bytes(), sizes.packed);
      EXPECT_EQ(matrix.bias.bytes(), sizes.bias);
      const std::string name = backend->layout() + " " + dtype_name(dtype);
      const uint64_t hash = hash64(bytes_of(matrix));
      if (!expected.contains(name) || expected.at(name) != hash) {
        std::printf("      {\"%s\", 0x%016llxu},\n", name.c_str(),
                    static_cast<unsigned long long>(hash));
        fail(__FILE__, __LINE__, "the layout of " + name + " has changed");
      }
    }
  }
}

// The same of MXFP4, which lies alike on targets whose tiles are as wide.
TEST(the_layout_of_mxfp4_is_the_one_of_its_version) {
  const std::map<std::string, uint64_t> expected = {
      {"6 of 4", 0xa8c111b88048facdu},
      {"6 of 8", 0xa8ebefba5b23e87fu},
      {"6 of 32", 0x195093f72db4eae8u},
  };
  for (const cpu::Kernels* target : cpu::compiled_targets()) {
    const RandomMxfp4 blocks(75, 96, 5);
    const PackedMatrix matrix = packed_as(target->mxfp4.tile, blocks.view(), DType::kMxfp4);
    const std::string name = std::to_string(cpu::kPackedLayoutVersion) + " of " +
                             std::to_string(target->mxfp4.tile.columns);
    const uint64_t hash = hash64(bytes_of(matrix));
    if (!expected.contains(name) || expected.at(name) != hash) {
      std::printf("      {\"%s\", 0x%016llxu},\n", name.c_str(),
                  static_cast<unsigned long long>(hash));
      fail(__FILE__, __LINE__, "the layout of " + name + " has changed");
    }
  }
}

// The same of FP8. Vectors and tiles of the same width lie alike.
TEST(the_layout_of_fp8_is_the_one_of_its_version) {
  const std::map<std::string, uint64_t> expected = {
      {"6 of 16", 0xc8a89897ca55a0d1u},
      {"6 of 32", 0x96c1ee8ec65564cdu},
      {"6 of 64", 0xeef17a75cdd1d64eu},
  };
  for (const cpu::Kernels* target : cpu::compiled_targets()) {
    const RandomFp8 blocks(75, 384, 5);
    const cpu::TileLayout& tile = target->fp8.tile;
    const PackedMatrix matrix = packed_as(tile, blocks.view(), DType::kFp8);
    const std::string name =
        std::to_string(cpu::kPackedLayoutVersion) + " of " + std::to_string(tile.columns);
    const uint64_t hash = hash64(bytes_of(matrix));
    if (!expected.contains(name) || expected.at(name) != hash) {
      std::printf("      {\"%s\", 0x%016llxu},\n", name.c_str(),
                  static_cast<unsigned long long>(hash));
      fail(__FILE__, __LINE__, "the layout of " + name + " has changed");
    }
  }
}

// The same of super-blocks, int4_zp, q5_0 and iq4_nl, which lie alike on targets whose tiles are as
// wide.
TEST(the_layout_of_super_blocks_is_the_one_of_its_version) {
  const std::map<std::string, uint64_t> expected = {
      {"6 of 4 q4_k", 0x0abdb0f6eb264249u},    {"6 of 4 q5_k", 0xeaa1b461041c3075u},
      {"6 of 4 q6_k", 0xa9e49cfc358958dau},    {"6 of 8 q4_k", 0x02162f8578810d68u},
      {"6 of 8 q5_k", 0x7fade626cc801450u},    {"6 of 8 q6_k", 0x9b4aa8114fc93aa2u},
      {"6 of 32 q4_k", 0xb73bd3756191c789u},   {"6 of 32 q5_k", 0xa5f32c1121c2bb64u},
      {"6 of 32 q6_k", 0xa8b280433ad34f82u},   {"6 of 4 int4_zp", 0x766cc4d92c1d8c92u},
      {"6 of 8 int4_zp", 0xc7ed08319cb74fcau}, {"6 of 32 int4_zp", 0x4bac218c56b02cffu},
      {"6 of 4 q5_0", 0x521936dff9f30d41u},    {"6 of 8 q5_0", 0x17bc5e9dca19accbu},
      {"6 of 32 q5_0", 0x0b5196e060ac2236u},   {"6 of 4 iq4_nl", 0x61a3707e18052a7eu},
      {"6 of 8 iq4_nl", 0x4d44e8a474b39704u},  {"6 of 32 iq4_nl", 0xbdd40f0af463664du},
      {"6 of 4 iq4_xs", 0x950817098eed375cu},  {"6 of 8 iq4_xs", 0x9f7179f7ca0bde15u},
      {"6 of 32 iq4_xs", 0x1bcec87e87acb560u}, {"6 of 4 q2_k", 0x00ec908b72116cadu},
      {"6 of 8 q2_k", 0x0e4fe260b5e297c0u},    {"6 of 32 q2_k", 0x658395c824fb62aeu},
      {"6 of 4 q3_k", 0x603b0ae3a34fbad0u},    {"6 of 8 q3_k", 0xa56cd79e72e0e805u},
      {"6 of 32 q3_k", 0xec1f2a4e187427b8u},   {"6 of 4 q4_1", 0xcc0ca50c5b833beau},
      {"6 of 8 q4_1", 0xe5207b05804c8e78u},    {"6 of 32 q4_1", 0x3b2bb982e26f9548u},
      {"6 of 4 q5_1", 0x9b74ecf78692c348u},    {"6 of 8 q5_1", 0x02b3a44fab4b76feu},
      {"6 of 32 q5_1", 0xf6ee97d1a6443dd8u},
  };
  for (const cpu::Kernels* target : cpu::compiled_targets()) {
    for (DType dtype : kF16NativeDTypes) {
      const RandomBlocks blocks(75, 768, dtype, 5);
      const cpu::TileLayout& tile = product_of(*target, dtype).tile;
      const PackedMatrix matrix = packed_as(tile, blocks.view(), dtype);
      const std::string name = std::to_string(cpu::kPackedLayoutVersion) + " of " +
                               std::to_string(tile.columns) + " " + dtype_name(dtype);
      const uint64_t hash = hash64(bytes_of(matrix));
      if (!expected.contains(name) || expected.at(name) != hash) {
        std::printf("      {\"%s\", 0x%016llxu},\n", name.c_str(),
                    static_cast<unsigned long long>(hash));
        fail(__FILE__, __LINE__, "the layout of " + name + " has changed");
      }
    }
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
