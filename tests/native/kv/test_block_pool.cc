#include "check.h"
#include "kv/block_pool.h"

using Keep = pb::BlockPool::Keep;

TEST(free_blocks_go_first_and_then_the_oldest_cached) {
  pb::BlockPool pool(4);
  for (const int expected : {0, 1, 2}) EXPECT_EQ(pool.take(), expected);
  for (const int block : {1, 0, 2}) pool.release(block, Keep::kLong);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.n_cached(), 3);
  EXPECT_EQ(pool.n_available(), 4);
  EXPECT_EQ(pool.oldest_cached(), 1);
  for (const int expected : {3, 1, 0, 2}) EXPECT_EQ(pool.take(), expected);
  EXPECT_EQ(pool.n_available(), 0);
  EXPECT_EQ(pool.oldest_cached(), -1);
  pool.check_integrity();
}

TEST(a_cached_block_that_is_asked_for_again_becomes_the_youngest) {
  pb::BlockPool pool(3);
  for (int block = 0; block < 3; ++block) EXPECT_EQ(pool.take(), block);
  for (int block = 0; block < 3; ++block) pool.release(block, Keep::kLong);
  for (const int block : {0, 1}) {  // at the old end, then in the middle of the list
    pool.retain(block);
    EXPECT(!pool.is_cached(block));
    pool.check_integrity();
    pool.release(block, Keep::kLong);
    pool.check_integrity();
  }
  for (const int expected : {2, 0, 1}) EXPECT_EQ(pool.take(), expected);
}

TEST(a_block_stays_used_until_its_last_holder_goes) {
  pb::BlockPool pool(1);
  const int block = pool.take();
  pool.retain(block);
  EXPECT_EQ(pool.refcount(block), 2);
  pool.release(block, Keep::kNot);
  EXPECT_EQ(pool.n_available(), 0);
  pool.release(block, Keep::kNot);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.refcount(block), 0);
  pool.check_integrity();
}

TEST(a_dropped_block_is_free) {
  pb::BlockPool pool(2);
  pool.release(pool.take(), Keep::kLong);
  EXPECT_EQ(pool.n_cached(), 1);
  pool.drop(pool.oldest_cached());
  EXPECT_EQ(pool.n_cached(), 0);
  EXPECT_EQ(pool.n_free(), 2);
  pool.check_integrity();
}

TEST(a_block_given_back_once_too_often_is_found) {
  pb::BlockPool pool(2);
  const int block = pool.take();
  pool.release(block, Keep::kNot);
  pool.release(block, Keep::kNot);
  EXPECT_THROWS(pb::ErrorCode::kEngine, pool.check_integrity());
}

PB_TEST_MAIN()
