// Attention: every type and head size, however the work is cut.
#include "cases.h"
#include "cuda_attention_fixture.h"

namespace pb::bench {
namespace {

using namespace pb::test;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8};

std::vector<float> joined(const std::vector<std::vector<float>>& rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

std::string title(const AttentionCase& c) {
  return std::string("attention ") + dtype_name(c.kv) + " of heads of " +
         std::to_string(c.head_dim) + (c.sliding_window > 0 ? ", in a window" : "") +
         (c.softcap > 0 ? ", capped" : "") + (c.sinks.empty() ? "" : ", with sinks") +
         (c.causal ? "" : ", both ways");
}

// The last rows of one sequence.
struct Rows {
  AttentionCase c;
  int length;
  int n;
};

// One cut of them: the segments in one item, or apart.
std::vector<float> attend_cut(const Rows& rows, bool large, bool by_map, bool apart) {
  AttentionCase cut = rows.c;
  cut.large_tiles = large;
  cut.maps = by_map;
  cut.state_bytes = apart ? int64_t{1} << 24 : 0;
  cut.n_multiprocessors = apart ? 30 : 1;
  const Sequence s = make_sequence(cut, rows.length, 1, 0);
  KvCache cache(cut, rows.length / cut.block_size + 2);
  cache.write(s, 0, rows.length);
  const Part part{&s, rows.length - rows.n, rows.n};
  return joined(attend(cut, cache, {&part, 1}));
}

// By tiles of both sizes.
void run_cuts(Cases& cases, const Rows& rows) {
  const std::string group = title(rows.c);
  const bool has_mma = rows.c.kv != DType::kF32;
  for (const bool large : {false, true}) {
    for (const bool apart : {false, true}) {
      const std::string name =
          group + (large ? ", large tiles" : ", small tiles") + (apart ? ", segments apart" : "");
      cases.run<float>({name, group, has_mma},
                       [&] { return attend_cut(rows, large, false, apart); });
    }
  }
}

// By tiles whose keys and values a map copies, where there is a kernel of them, and by small ones.
void run_cuts_by_maps(Cases& cases, Rows rows) {
  rows.c.maps = true;
  if (!has_tma_kernel(attention_device(rows.c), attention_kv(rows.c))) return;
  rows.n = cases.is_small() ? 70 : 110;  // a tile that is full, and one that is not
  const std::string group = title(rows.c) + ", " + std::to_string(rows.n) + " rows";
  cases.run<float>({group + ", small tiles", group, true},
                   [&] { return attend_cut(rows, false, false, false); });
  for (const bool apart : {false, true}) {
    const std::string name = group + ", tiles by maps" + (apart ? ", segments apart" : "");
    run_wgmma_case(cases, {name, group, true}, [&] { return attend_cut(rows, true, true, apart); });
  }
}

// Rows of several sequences, of which two share a prefix; and each alone.
void run_company(Cases& cases, AttentionCase c) {
  c.head_dim = 32;
  c.n_kv_heads = 1;
  c.group = 3;
  const ThreeSequences three(c, {{{329, 1}, {298, 2}, {20, 70}}});
  const bool has_mma = c.kv != DType::kF32;
  const std::string group = std::string("attention ") + dtype_name(c.kv) + " of three sequences";
  cases.run<float>({group + ", together", group, has_mma},
                   [&] { return joined(attend(c, three.cache, three.parts)); });
  cases.run<float>({group + ", alone", group, has_mma}, [&] {
    std::vector<std::vector<float>> rows;
    for (const Part& part : three.parts) {
      for (auto& row : attend(c, three.cache, {&part, 1})) rows.push_back(std::move(row));
    }
    return joined(rows);
  });
}

std::vector<Rows> rows_of(DType kv, bool is_small) {
  std::vector<Rows> all;
  const std::vector<int> head_dims =
      is_small ? std::vector<int>{64, 80, 128, 256, 512}
               : std::vector<int>{2, 16, 64, 80, 96, 128, 200, 256, 320, 512};
  for (const int head_dim : head_dims) {
    AttentionCase c;
    c.kv = kv;
    c.head_dim = head_dim;
    c.n_kv_heads = 1;
    all.push_back({c, is_small ? 260 : 600, is_small ? 3 : 40});
  }
  AttentionCase windowed;
  windowed.kv = kv;
  windowed.sliding_window = 70;
  windowed.out_bf16 = true;
  all.push_back({windowed, 300, 3});
  AttentionCase capped;
  capped.kv = kv;
  capped.softcap = 0.7f;
  all.push_back({capped, 300, 3});
  AttentionCase sunk;
  sunk.kv = kv;
  sunk.sinks = {0.5f, -3.0f, 20.0f, 1.0f};
  all.push_back({sunk, 300, 3});
  AttentionCase seen_from_both_sides = windowed;
  seen_from_both_sides.causal = false;
  all.push_back({seen_from_both_sides, 300, 300});
  return all;
}

}  // namespace

void run_attention_cases(Cases& cases) {
  for (const DType kv : kTypes) {
    for (const Rows& rows : rows_of(kv, cases.is_small())) run_cuts(cases, rows);
    run_company(cases, {.kv = kv});
  }
}

void run_tma_attention_cases(Cases& cases) {
  for (const DType kv : kTypes) {
    for (const Rows& rows : rows_of(kv, cases.is_small())) run_cuts_by_maps(cases, rows);
  }
}

}  // namespace pb::bench
