// What the tests of KvCache share.
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kv/kv_cache.h"

namespace pb::test {

using Code = ErrorCode;
using Tokens = std::vector<int32_t>;

inline constexpr int kBlock = 4;

// first, first + 1, ... : n tokens.
inline Tokens run(int n, int32_t first = 0) {
  Tokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A cache of blocks of 4 tokens that notes which blocks were copied.
struct Fixture {
  explicit Fixture(int n_blocks = 8, int n_parallel = 4, int max_length = 64,
                   uint64_t hash_mask = ~uint64_t{0})
      : cache(
            n_blocks, kBlock, n_parallel, max_length,
            [this](int, int from, int to) {
              if (on_copy) on_copy();
              copies.emplace_back(from, to);
            },
            hash_mask) {}

  void append(int seq_id, const Tokens& tokens) {
    cache.reserve(seq_id, tokens);
    cache.commit(seq_id);
  }
  int make(const Tokens& tokens, const char* name_space = "") {
    const int seq_id = cache.seq_new(name_space);
    if (!tokens.empty()) append(seq_id, tokens);
    return seq_id;
  }
  Tokens tokens(int seq_id) const {
    const auto span = cache.tokens(seq_id);
    return {span.begin(), span.end()};
  }
  Tokens block_table(int seq_id) const {
    const auto span = cache.block_table(seq_id);
    return {span.begin(), span.end()};
  }
  void expect_blocks(int free, int cached) const {
    EXPECT_EQ(cache.free_blocks(), free);
    EXPECT_EQ(cache.cached_blocks(), cached);
    cache.check_integrity();
  }

  std::vector<std::pair<int, int>> copies;
  std::function<void()> on_copy;
  KvCache cache;
};

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pb::test
