// Sequences, sharing and eviction, case by case; test_kv_reserve.cc has the appends.
// tests/test_kv_cache.py runs random histories against a model.

#include <utility>

#include "kv/kv_cache.h"
#include "kv_fixture.h"

using namespace pb::test;

TEST(ids_are_handed_out_lowest_first) {
  Fixture f(8, 3);
  for (const int expected : {0, 1, 2}) EXPECT_EQ(f.cache.seq_new(), expected);
  EXPECT_THROWS(Code::kNoFreeSequence, f.cache.seq_new());
  EXPECT_EQ(f.cache.used_sequences(), 3);
  f.cache.seq_remove(2);
  f.cache.seq_remove(0);
  EXPECT(!f.cache.seq_exists(0));
  EXPECT(f.cache.seq_exists(1));
  EXPECT_EQ(f.cache.seq_new(), 0);
  EXPECT_EQ(f.cache.seq_new(), 2);
}

TEST(an_append_takes_blocks_and_a_whole_remove_gives_them_back) {
  Fixture f;
  const int a = f.make(run(9));
  EXPECT_EQ(f.cache.seq_length(a), 9);
  EXPECT(f.tokens(a) == run(9));
  EXPECT_EQ(f.cache.block_table(a).size(), 3u);
  f.expect_blocks(5, 0);
  f.cache.seq_remove(a);
  f.expect_blocks(6, 2);  // the full ones are kept
  EXPECT_EQ(f.cache.used_sequences(), 0);
  f.cache.drop_cached();
  f.expect_blocks(8, 0);
}

TEST(match_attaches_whole_blocks_and_leaves_a_token_to_compute) {
  Fixture f;
  f.cache.seq_remove(f.make(run(12)));
  for (const auto& [n_tokens, expected] :
       {std::pair{0, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {12, 8}, {13, 12}, {30, 12}}) {
    const int b = f.cache.seq_new();
    EXPECT_EQ(f.cache.seq_match(b, run(n_tokens)), expected);
    EXPECT(f.tokens(b) == run(expected));
    f.cache.check_integrity();
    f.cache.seq_remove(b);
  }
  f.expect_blocks(5, 3);
}

// The fixture's blocks have four positions.
TEST(every_name_space_starts_with_common_blocks_and_shares_no_others) {
  Fixture f(12, 6);
  const int common = f.cache.seq_new_common();
  f.append(common, run(8));
  const int a = f.cache.seq_new("a");
  EXPECT_EQ(f.cache.seq_match(a, run(14)), 8);
  f.append(a, std::vector<int32_t>{50, 51, 52, 53, 54});
  const int b = f.cache.seq_new("b");
  std::vector<int32_t> tokens = run(8);
  tokens.insert(tokens.end(), {50, 51, 52, 53, 54});
  EXPECT_EQ(f.cache.seq_match(b, tokens), 8);  // not the block of a
  const int again = f.cache.seq_new("a");
  EXPECT_EQ(f.cache.seq_match(again, tokens), 12);
  const int other = f.cache.seq_new_common();
  EXPECT_EQ(f.cache.seq_match(other, tokens), 8);
  f.cache.check_integrity();
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, f.cache.seq_new("b"), 4));
}

TEST(a_common_sequence_is_copied_into_any_name_space_and_none_into_it) {
  Fixture f(12, 4);
  const int common = f.cache.seq_new_common();
  f.append(common, run(6));
  const int a = f.cache.seq_new("a");
  f.cache.seq_copy(common, a, 6);
  EXPECT(f.tokens(a) == run(6));
  f.append(a, std::vector<int32_t>{60, 61, 62});
  f.cache.check_integrity();
  const int other = f.cache.seq_new_common();
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, other, 4));
  f.cache.seq_copy(common, other, 6);
  f.cache.check_integrity();
}

TEST(match_sees_blocks_that_others_hold) {
  Fixture f;
  const int a = f.make(run(8));
  const int b = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(b, run(9)), 8);
  EXPECT(f.block_table(a) == f.block_table(b));
  f.expect_blocks(6, 0);
}

TEST(match_takes_more_tokens_than_a_sequence_may_have) {
  Fixture f(8, 4, 8);
  f.cache.seq_remove(f.make(run(8)));
  const int b = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(b, run(50)), 8);
}

TEST(exclusive_blocks_are_those_that_nobody_else_holds) {
  Fixture f;
  const int a = f.make(run(10));
  EXPECT_EQ(f.cache.seq_exclusive_blocks(a), 3);
  const int b = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_exclusive_blocks(b), 0);
  EXPECT_EQ(f.cache.seq_match(b, run(9)), 8);
  EXPECT_EQ(f.cache.seq_exclusive_blocks(a), 1);
  EXPECT_EQ(f.cache.seq_exclusive_blocks(b), 0);
  f.cache.reserve(b, run(6));
  EXPECT_EQ(f.cache.seq_exclusive_blocks(b), 2);
  f.cache.rollback(b);
  f.cache.seq_remove(a);
  EXPECT_EQ(f.cache.seq_exclusive_blocks(b), 2);
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_exclusive_blocks(a));
}

TEST(name_spaces_never_share) {
  Fixture f;
  f.make(run(8), "alice");
  const int b = f.cache.seq_new("bob");
  EXPECT_EQ(f.cache.seq_match(b, run(9)), 0);
  f.append(b, run(8));
  f.expect_blocks(4, 0);
  const int c = f.cache.seq_new("alice");
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(b, c, 4));
  EXPECT_EQ(f.cache.seq_match(c, run(9)), 8);
  EXPECT(f.block_table(c) == f.block_table(0));
}

TEST(contents_that_share_a_hash_are_told_apart) {
  for (const uint64_t mask : {uint64_t{0}, uint64_t{3}}) {
    Fixture f(64, 16, 64, mask);
    for (int32_t i = 0; i < 12; ++i) f.make(run(8, i));
    f.expect_blocks(64 - 24, 0);
    for (int32_t i = 0; i < 12; ++i) {
      const int b = f.cache.seq_new();
      EXPECT_EQ(f.cache.seq_match(b, run(9, i)), 8);
      EXPECT(f.block_table(b) == f.block_table(i));
      f.cache.seq_remove(b);
    }
  }
}

TEST(copy_shares_full_blocks_and_copies_the_partial_one) {
  Fixture f;
  const int a = f.make(run(10));
  for (const int n_tokens : {0, 3, 4, 7, 8, 10}) {
    const int b = f.cache.seq_new();
    f.copies.clear();
    f.cache.seq_copy(a, b, n_tokens);
    EXPECT(f.tokens(b) == run(n_tokens));
    const size_t n_full = static_cast<size_t>(n_tokens / kBlock);
    for (size_t i = 0; i < n_full; ++i) EXPECT_EQ(f.block_table(b)[i], f.block_table(a)[i]);
    if (n_tokens % kBlock == 0) {
      EXPECT(f.copies.empty());
    } else {
      EXPECT_EQ(f.copies.size(), 1u);
      EXPECT(f.copies.front() == std::pair(f.block_table(a)[n_full], f.block_table(b)[n_full]));
    }
    f.append(b, {99, 98});  // without a further copy
    EXPECT(f.copies.size() <= 1);
    EXPECT(f.tokens(a) == run(10));
    f.cache.check_integrity();
    f.cache.seq_remove(b);
  }
}

TEST(copy_evicts_for_its_block_but_never_what_it_copies) {
  Fixture f(3, 4);
  f.cache.seq_remove(f.make(run(4, 50)));  // cached, in block 0
  const int a = f.make(run(6));            // blocks 1 and 2
  f.expect_blocks(0, 1);
  const int b = f.cache.seq_new();
  f.cache.seq_copy(a, b, 6);
  EXPECT(f.copies == (std::vector{std::pair{2, 0}}));
  f.expect_blocks(0, 0);
  const int c = f.cache.seq_new();
  EXPECT_THROWS(Code::kKvCacheFull, f.cache.seq_copy(a, c, 6));
  EXPECT_EQ(f.cache.seq_length(c), 0);
  f.cache.seq_copy(a, c, 4);  // shares: needs no block
  f.expect_blocks(0, 0);
}

TEST(copy_refuses_what_it_cannot_do) {
  Fixture f;
  const int a = f.make(run(5));
  const int b = f.cache.seq_new();
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, a, 5));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(b, a, 0));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, b, 6));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, b, -1));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, 3, 5));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(-1, b, 0));
  f.expect_blocks(6, 0);
}

TEST(the_tail_alone_can_be_removed) {
  Fixture f;
  const int a = f.make(run(9));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_remove(a, 2, 5));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_remove(a, 10));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_remove(a, -1));
  f.cache.seq_remove(a, 9);  // nothing
  f.cache.seq_remove(a, 4, 9);
  EXPECT(f.tokens(a) == run(4));
  f.expect_blocks(6, 1);
  f.cache.seq_remove(a, 0, 4);
  EXPECT(!f.cache.seq_exists(a));
  f.expect_blocks(6, 2);
}

TEST(leaves_are_evicted_before_their_parents) {
  Fixture f(4);
  f.cache.seq_remove(f.make(run(16)));
  f.expect_blocks(0, 4);
  for (int n_evicted = 1; n_evicted < 4; ++n_evicted) {
    const int other = f.make(run(4 * n_evicted - 3, 100));  // takes n_evicted blocks
    f.cache.check_integrity();
    const int probe = f.cache.seq_new();
    EXPECT_EQ(f.cache.seq_match(probe, run(17)), 16 - 4 * n_evicted);
    f.cache.seq_remove(probe);
    f.cache.seq_remove(other);
    f.cache.drop_cached();
    f.cache.seq_remove(f.make(run(16)));
  }
}

TEST(what_was_used_last_is_evicted_last) {
  Fixture f(3);
  f.cache.seq_remove(f.make(run(4, 10)));
  f.cache.seq_remove(f.make(run(4, 20)));
  const int touch = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(touch, run(5, 10)), 4);
  f.cache.seq_remove(touch);
  f.make(run(8, 30));  // one free block, one evicted
  const int probe = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(probe, run(5, 20)), 0);
  EXPECT_EQ(f.cache.seq_match(probe, run(5, 10)), 4);
}

TEST(errors_name_the_field_the_value_and_the_way_out) {
  Fixture f(2, 4, 30);
  EXPECT(has(message_of([&] { f.cache.seq_length(2); }), "seq_id is 2; no sequence is in use"));
  f.make(run(5));
  f.make({});
  EXPECT(has(message_of([&] { f.cache.seq_length(9); }),
             "seq_id is 9; the sequences in use are 0, 1"));
  EXPECT(has(message_of([&] { f.cache.seq_copy(0, 1, 40); }),
             "n_tokens is 40; sequence 0 has 5 tokens"));
  EXPECT(has(message_of([&] { f.cache.seq_remove(0, 7); }), "start is 7; sequence 0 has 5 tokens"));
  EXPECT(
      has(message_of([&] { f.cache.seq_remove(0, 0, 3); }), "end is 3; sequence 0 has 5 tokens"));
  EXPECT(
      has(message_of([&] { f.cache.reserve(0, run(26)); }), "26 items; sequence 0 has 5 tokens"));
  EXPECT(has(message_of([&] { f.cache.reserve(0, run(20)); }), "5 KV blocks"));
}

TEST(a_cache_that_cannot_work_is_refused) {
  const auto copy = [](int, int, int) {};
  EXPECT_THROWS(Code::kConfig, pb::KvCache(0, 4, 1, 8, copy));
  EXPECT_THROWS(Code::kConfig, pb::KvCache(4, 0, 1, 8, copy));
  EXPECT_THROWS(Code::kConfig, pb::KvCache(4, 4, 0, 8, copy));
  EXPECT_THROWS(Code::kConfig, pb::KvCache(4, 4, 1, -8, copy));
  EXPECT_THROWS(Code::kConfig, pb::KvCache(4, 4, 1, 8, nullptr));
}

// The views show the cache's own memory, which is not const: writing to it plays the bug.
TEST(check_integrity_finds_damage) {
  Fixture f;
  const int a = f.make(run(6));
  f.cache.check_integrity();
  auto& token = const_cast<int32_t&>(f.cache.tokens(a)[1]);
  token += 1;
  EXPECT_THROWS(Code::kEngine, f.cache.check_integrity());
  token -= 1;
  auto& block = const_cast<int32_t&>(f.cache.block_table(a)[1]);
  for (const int32_t wrong : {0, 5, -1, 8}) {
    const int32_t right = std::exchange(block, wrong);
    EXPECT_THROWS(Code::kEngine, f.cache.check_integrity());
    block = right;
  }
  f.cache.check_integrity();
}

TEST(check_integrity_finds_a_block_that_is_written_to_and_in_the_index) {
  Fixture f;
  const int a = f.make(run(8));
  f.cache.seq_remove(a, 6);  // its last block stays in the index
  const int b = f.cache.seq_new();
  f.cache.reserve(b, run(2));
  f.cache.check_integrity();
  std::swap(const_cast<int32_t&>(f.cache.block_table(a)[1]),
            const_cast<int32_t&>(f.cache.block_table(b)[0]));
  EXPECT_THROWS(Code::kEngine, f.cache.check_integrity());
}

PB_TEST_MAIN()
