// The two halves of an append: reserve, with its copy on write, then commit or rollback.

#include <stdexcept>
#include <utility>

#include "kv/kv_cache.h"
#include "kv_fixture.h"

using namespace pb::test;

TEST(equal_blocks_computed_twice_become_one) {
  Fixture f;
  const int a = f.cache.seq_new();
  const int b = f.cache.seq_new();
  f.cache.reserve(a, run(9));
  f.cache.reserve(b, run(9));
  f.cache.commit(a);
  f.cache.commit(b);
  EXPECT_EQ(f.block_table(a)[0], f.block_table(b)[0]);
  EXPECT_EQ(f.block_table(a)[1], f.block_table(b)[1]);
  EXPECT(f.block_table(a)[2] != f.block_table(b)[2]);
  f.expect_blocks(4, 0);
  EXPECT(f.copies.empty());
}

TEST(what_is_not_committed_was_never_there) {
  Fixture f;
  const int a = f.make(run(3));
  f.cache.reserve(a, run(10, 3));  // to the end of block 3, and one more
  f.expect_blocks(4, 0);
  f.cache.commit(a, 2);
  EXPECT(f.tokens(a) == run(5));
  f.expect_blocks(6, 0);
  EXPECT_EQ(f.cache.seq_match(f.cache.seq_new(), run(13)), 4);
  f.append(a, {90});
  EXPECT(f.tokens(a) == (Tokens{0, 1, 2, 3, 4, 90}));
  f.cache.reserve(a, run(3));
  for (int n_tokens : {0, 4, -1}) EXPECT_THROWS(Code::kEngine, f.cache.commit(a, n_tokens));
  f.cache.rollback(a);
  EXPECT_THROWS(Code::kEngine, f.cache.commit(a, 1));
  EXPECT(f.tokens(a) == (Tokens{0, 1, 2, 3, 4, 90}));
  f.expect_blocks(6, 0);
}

TEST(a_block_in_the_cache_is_taken_up_again_by_a_commit) {
  Fixture f;
  f.cache.seq_remove(f.make(run(4)));
  const int b = f.make(run(4));  // computed without a match
  f.expect_blocks(7, 0);
  EXPECT_EQ(f.cache.seq_length(b), 4);
}

TEST(a_shared_block_cut_short_is_copied_before_it_is_written) {
  Fixture f;
  const int a = f.make(run(8));
  const int b = f.cache.seq_new();
  f.cache.seq_copy(a, b, 8);
  f.cache.seq_remove(b, 6);
  EXPECT(f.block_table(a) == f.block_table(b));
  f.cache.reserve(b, Tokens{70, 71});
  const auto written = f.block_table(b)[1];
  EXPECT(f.copies == (std::vector{std::pair{f.block_table(a)[1], written}}));
  f.cache.commit(b);
  EXPECT(f.tokens(a) == run(8));
  EXPECT(f.tokens(b) == (Tokens{0, 1, 2, 3, 4, 5, 70, 71}));
  f.expect_blocks(5, 0);
}

TEST(an_indexed_block_cut_short_stays_in_the_cache_when_it_is_written_to) {
  Fixture f;
  const int a = f.make(run(8));
  f.cache.seq_remove(a, 6);
  f.append(a, {70});
  EXPECT_EQ(f.copies.size(), 1u);
  f.expect_blocks(5, 1);
  const int b = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(b, run(9)), 8);
}

TEST(without_room_for_a_copy_the_block_leaves_the_index_and_is_written_in_place) {
  Fixture f(2);
  const int a = f.make(run(8));
  f.cache.seq_remove(a, 6);
  f.append(a, {70});
  EXPECT(f.copies.empty());
  EXPECT(f.tokens(a) == (Tokens{0, 1, 2, 3, 4, 5, 70}));
  f.expect_blocks(0, 0);
}

TEST(in_place_evicts_the_children_that_the_block_had) {
  Fixture f(3);
  const int a = f.make(run(12));
  f.cache.seq_remove(a, 3);  // blocks 1 and 2 are cached, block 0 is cut short and in the index
  f.expect_blocks(0, 2);
  f.append(a, run(9, 40));  // needs both
  EXPECT(f.copies.empty());
  f.expect_blocks(0, 0);
  EXPECT_EQ(f.cache.seq_length(a), 12);
}

TEST(a_shared_block_is_never_written_in_place) {
  Fixture f(2);
  const int a = f.make(run(8));
  const int b = f.cache.seq_new();
  f.cache.seq_copy(a, b, 8);
  f.cache.seq_remove(b, 6);
  EXPECT_THROWS(Code::kKvCacheFull, f.cache.reserve(b, Tokens{70}));
  EXPECT_EQ(f.cache.seq_length(b), 6);
  f.expect_blocks(0, 0);
}

TEST(rollback_restores_length_tokens_and_blocks) {
  Fixture f;
  const int a = f.make(run(8));
  f.cache.seq_remove(a, 6);
  const auto blocks = f.block_table(a);
  f.cache.reserve(a, run(7, 70));
  EXPECT_EQ(f.cache.seq_length(a), 6);
  EXPECT(f.tokens(a) == run(6));
  EXPECT_EQ(f.cache.block_table(a).size(), 4u);
  f.cache.check_integrity();
  f.cache.rollback(a);
  EXPECT(f.block_table(a) == blocks);
  EXPECT(f.tokens(a) == run(6));
  f.expect_blocks(6, 0);
  f.cache.rollback(a);  // nothing to do
  f.expect_blocks(6, 0);
  const int b = f.cache.seq_new();
  EXPECT_EQ(f.cache.seq_match(b, run(9)), 8);  // still in the index
}

TEST(reserve_changes_nothing_when_it_fails) {
  Fixture f(3, 4, 11);
  const int a = f.make(run(5));
  EXPECT_THROWS(Code::kRequestTooLong, f.cache.reserve(a, run(7)));
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.reserve(a, Tokens{}));
  f.make(run(3, 90));
  EXPECT_THROWS(Code::kKvCacheFull, f.cache.reserve(a, run(4)));
  EXPECT_EQ(f.cache.block_table(a).size(), 2u);
  f.append(a, run(3));  // fits in its last block
  f.expect_blocks(0, 0);
}

TEST(a_pending_reservation_blocks_other_changes_of_its_sequence) {
  Fixture f;
  const int a = f.make(run(5));
  const int b = f.cache.seq_new();
  EXPECT_THROWS(Code::kEngine, f.cache.commit(a));
  f.cache.reserve(a, run(2));
  EXPECT_THROWS(Code::kEngine, f.cache.reserve(a, run(2)));
  EXPECT_THROWS(Code::kEngine, f.cache.seq_remove(a));
  EXPECT_THROWS(Code::kEngine, f.cache.seq_copy(a, b, 5));
  f.cache.reserve(b, run(2));
  EXPECT_THROWS(Code::kEngine, f.cache.seq_match(b, run(9)));
  f.cache.commit(a);
  f.cache.rollback(b);
  EXPECT_EQ(f.cache.seq_length(a), 7);
  f.expect_blocks(6, 0);
}

TEST(a_copy_that_fails_leaves_everything_as_it_was) {
  Fixture f;
  const int a = f.make(run(6));
  const int b = f.cache.seq_new();
  f.on_copy = [] { throw std::runtime_error("no copy today"); };
  const auto throws = [](auto&& call) {
    try {
      call();
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  };
  EXPECT(throws([&] { f.cache.seq_copy(a, b, 6); }));
  EXPECT_EQ(f.cache.seq_length(b), 0);
  f.expect_blocks(6, 0);
  f.append(a, run(2, 6));
  f.cache.seq_remove(a, 7);
  EXPECT(throws([&] { f.cache.reserve(a, run(1)); }));
  EXPECT(f.tokens(a) == run(7));
  f.expect_blocks(6, 0);
  f.on_copy = nullptr;
  f.append(a, run(1));
  f.cache.seq_copy(a, b, 6);
  f.cache.check_integrity();
}

TEST(a_copy_may_not_change_the_cache) {
  Fixture f;
  const int a = f.make(run(6));
  const int b = f.cache.seq_new();
  f.on_copy = [&] { f.cache.seq_remove(a); };
  EXPECT_THROWS(Code::kEngine, f.cache.seq_copy(a, b, 6));
  EXPECT(f.tokens(a) == run(6));
  f.expect_blocks(6, 0);
}

PB_TEST_MAIN()
