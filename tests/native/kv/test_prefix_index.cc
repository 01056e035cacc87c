#include <array>

#include "check.h"
#include "kv/prefix_index.h"

namespace {

constexpr int kNone = pb::PrefixIndex::kNone;
using Block = std::array<int32_t, 2>;

pb::NameSpace name_space(const char* name) { return std::make_shared<const std::string>(name); }

}  // namespace

// With mask 0 all contents have one hash, with 1 two: what the index answers must not change.
TEST(contents_are_told_apart_whatever_their_hashes) {
  for (const uint64_t mask : {~uint64_t{0}, uint64_t{1}, uint64_t{0}}) {
    pb::PrefixIndex index(8, 2, mask);
    const auto a = name_space("a");
    const auto b = name_space("b");
    index.insert(0, a, kNone, Block{1, 2});
    index.insert(1, b, kNone, Block{1, 2});
    index.insert(2, a, kNone, Block{2, 1});
    index.insert(3, a, 0, Block{1, 2});
    index.insert(4, a, 2, Block{1, 2});
    index.insert(5, b, 1, Block{-1, 2});
    index.check_integrity();
    EXPECT_EQ(index.size(), 6);
    EXPECT_EQ(index.find(a, kNone, Block{1, 2}), 0);
    EXPECT_EQ(index.find(name_space("a"), kNone, Block{1, 2}), 0);  // by its text
    EXPECT_EQ(index.find(b, kNone, Block{1, 2}), 1);
    EXPECT_EQ(index.find(a, kNone, Block{2, 1}), 2);
    EXPECT_EQ(index.find(a, 0, Block{1, 2}), 3);
    EXPECT_EQ(index.find(a, 2, Block{1, 2}), 4);
    EXPECT_EQ(index.find(b, 1, Block{-1, 2}), 5);
    EXPECT_EQ(index.find(b, 1, Block{1, 2}), kNone);
    EXPECT_EQ(index.find(b, kNone, Block{2, 1}), kNone);
    EXPECT_EQ(index.find(a, 3, Block{1, 2}), kNone);
    EXPECT_EQ(index.find(name_space(""), kNone, Block{1, 2}), kNone);
  }
}

TEST(an_erased_block_is_found_no_more_and_the_others_are) {
  for (const uint64_t mask : {~uint64_t{0}, uint64_t{0}}) {
    pb::PrefixIndex index(3, 2, mask);
    const auto space = name_space("");
    for (int32_t block = 0; block < 3; ++block)
      index.insert(block, space, kNone, Block{block, block});
    index.erase(1);
    index.erase(1);  // nothing
    EXPECT_EQ(index.size(), 2);
    EXPECT(!index.contains(1));
    EXPECT_EQ(index.find(space, kNone, Block{0, 0}), 0);
    EXPECT_EQ(index.find(space, kNone, Block{1, 1}), kNone);
    EXPECT_EQ(index.find(space, kNone, Block{2, 2}), 2);
    index.check_integrity();
  }
}

TEST(a_block_that_takes_the_place_of_a_parent_does_not_inherit_its_children) {
  pb::PrefixIndex index(4, 2, 0);
  const auto space = name_space("");
  index.insert(0, space, kNone, Block{1, 1});
  index.insert(1, space, 0, Block{5, 5});
  index.erase(0);
  EXPECT_THROWS(pb::ErrorCode::kEngine, index.check_integrity());  // 1 has lost its parent
  index.insert(0, space, kNone, Block{2, 2});
  EXPECT_EQ(index.find(space, 0, Block{5, 5}), kNone);
  index.erase(1);
  index.check_integrity();
}

// Blocks after a common one have the name space in their key, as first blocks do.
TEST(name_spaces_after_a_common_block_are_told_apart) {
  const pb::NameSpace& common = pb::common_name_space();
  for (const uint64_t mask : {~uint64_t{0}, uint64_t{0}}) {
    pb::PrefixIndex index(8, 2, mask);
    const auto a = name_space("a");
    const auto unnamed = name_space("");
    index.insert(0, common, kNone, Block{1, 2});
    index.insert(1, common, 0, Block{3, 4});
    index.insert(2, a, 1, Block{5, 6});
    index.insert(3, unnamed, 1, Block{5, 6});
    index.insert(4, a, 2, Block{7, 8});
    index.insert(5, unnamed, kNone, Block{1, 2});
    index.check_integrity();
    EXPECT_EQ(index.find(common, kNone, Block{1, 2}), 0);
    EXPECT_EQ(index.find(common, 0, Block{3, 4}), 1);
    EXPECT_EQ(index.find(name_space("a"), 1, Block{5, 6}), 2);
    EXPECT_EQ(index.find(unnamed, 1, Block{5, 6}), 3);
    EXPECT_EQ(index.find(common, 1, Block{5, 6}), kNone);
    EXPECT_EQ(index.find(name_space("b"), 1, Block{5, 6}), kNone);
    EXPECT_EQ(index.find(a, 0, Block{3, 4}), kNone);
    EXPECT_EQ(index.find(a, 2, Block{7, 8}), 4);
    EXPECT_EQ(index.find(unnamed, kNone, Block{1, 2}), 5);  // the common one has no text either
    EXPECT(index.may_be_common_after(kNone));
    EXPECT(index.may_be_common_after(1));
    EXPECT(!index.may_be_common_after(2));
    index.erase(4);
    index.erase(2);
    EXPECT_EQ(index.find(a, 1, Block{5, 6}), kNone);
    EXPECT_EQ(index.find(unnamed, 1, Block{5, 6}), 3);
    index.check_integrity();
  }
}

TEST(two_blocks_of_one_content_are_found_out) {
  pb::PrefixIndex index(2, 2);
  index.insert(0, name_space("x"), kNone, Block{1, 1});
  index.insert(1, name_space("x"), kNone, Block{1, 1});
  EXPECT_THROWS(pb::ErrorCode::kEngine, index.check_integrity());
}

PB_TEST_MAIN()
