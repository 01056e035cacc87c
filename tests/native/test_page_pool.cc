#include "check.h"
#include "kv/page_pool.h"

TEST(free_pages_go_first_and_then_the_oldest_cached) {
  pb::PagePool pool(4);
  for (const int expected : {0, 1, 2}) EXPECT_EQ(pool.take(), expected);
  for (const int page : {1, 0, 2}) pool.release(page, true);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.n_cached(), 3);
  EXPECT_EQ(pool.n_available(), 4);
  EXPECT_EQ(pool.oldest_cached(), 1);
  for (const int expected : {3, 1, 0, 2}) EXPECT_EQ(pool.take(), expected);
  EXPECT_EQ(pool.n_available(), 0);
  EXPECT_EQ(pool.oldest_cached(), -1);
  pool.check_integrity();
}

TEST(a_cached_page_that_is_asked_for_again_becomes_the_youngest) {
  pb::PagePool pool(3);
  for (int page = 0; page < 3; ++page) EXPECT_EQ(pool.take(), page);
  for (int page = 0; page < 3; ++page) pool.release(page, true);
  for (const int page : {0, 1}) {  // at the old end, then in the middle of the list
    pool.retain(page);
    EXPECT(!pool.is_cached(page));
    pool.check_integrity();
    pool.release(page, true);
    pool.check_integrity();
  }
  for (const int expected : {2, 0, 1}) EXPECT_EQ(pool.take(), expected);
}

TEST(a_page_stays_used_until_its_last_holder_goes) {
  pb::PagePool pool(1);
  const int page = pool.take();
  pool.retain(page);
  EXPECT_EQ(pool.refcount(page), 2);
  pool.release(page, false);
  EXPECT_EQ(pool.n_available(), 0);
  pool.release(page, false);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.refcount(page), 0);
  pool.check_integrity();
}

TEST(a_dropped_page_is_free) {
  pb::PagePool pool(2);
  pool.release(pool.take(), true);
  EXPECT_EQ(pool.n_cached(), 1);
  pool.drop(pool.oldest_cached());
  EXPECT_EQ(pool.n_cached(), 0);
  EXPECT_EQ(pool.n_free(), 2);
  pool.check_integrity();
}

TEST(a_page_given_back_once_too_often_is_found) {
  pb::PagePool pool(2);
  const int page = pool.take();
  pool.release(page, false);
  pool.release(page, false);
  EXPECT_THROWS(pb::ErrorCode::kEngine, pool.check_integrity());
}

PB_TEST_MAIN()
