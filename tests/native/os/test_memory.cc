#include <optional>
#include <string>

#include "check.h"
#include "fake_cgroups.h"
#include "os/memory.h"

namespace {

class FakeMount : public pb::test::FakeCgroups {
 public:
  // -1: no limit
  int64_t left(const std::string& self_cgroup) const {
    const auto left = pb::cgroup_memory(path(), self_cgroup);
    return left ? static_cast<int64_t>(*left) : -1;
  }
};

}  // namespace

TEST(the_system_says_what_is_available) {
  const std::string text =
      "MemTotal:       16000000 kB\nMemFree:          100000 kB\n"
      "MemAvailable:    8000000 kB\nBuffers:  5 kB\n";
  EXPECT_EQ(pb::available_of(text).value_or(0), size_t{8000000} << 10);
  for (const char* const odd : {"", "MemFree: 100 kB\n", "MemAvailable:\n", "MemAvailable: x kB",
                                "xMemAvailable: 100 kB", "MemAvailable100 kB"}) {
    EXPECT(!pb::available_of(odd));
  }
}

TEST(a_v2_limit_leaves_what_is_not_used_but_for_files) {
  FakeMount mount;
  mount.write("app/memory.max", "1000000\n");
  mount.write("app/memory.current", "700000\n");
  EXPECT_EQ(mount.left("0::/app\n"), 300000);
  mount.write("app/memory.stat", "anon 400000\ninactive_file 200000\nactive_file 100000\n");
  EXPECT_EQ(mount.left("0::/app\n"), 600000);
  mount.write("app/memory.current", "100000\n");  // read a moment apart, they may not agree
  EXPECT_EQ(mount.left("0::/app\n"), 1000000);
  mount.write("app/memory.current", "2000000\n");
  EXPECT_EQ(mount.left("0::/app\n"), 0);
  mount.write("app/memory.max", "max\n");
  EXPECT_EQ(mount.left("0::/app\n"), -1);
}

TEST(the_tightest_limit_on_the_way_to_the_root_counts) {
  FakeMount mount;
  mount.write("slice/app/memory.max", "900\n");
  mount.write("slice/app/memory.current", "100\n");
  mount.write("slice/memory.max", "1000\n");
  mount.write("slice/memory.current", "500\n");
  EXPECT_EQ(mount.left("0::/slice/app\n"), 500);
  EXPECT_EQ(mount.left("0::/slice/other\n"), 500);
  EXPECT_EQ(mount.left("0::/elsewhere\n"), -1);
}

TEST(a_v1_limit_is_read_where_the_memory_controller_is) {
  FakeMount mount;
  mount.write("memory/app/memory.limit_in_bytes", "1000\n");
  mount.write("memory/app/memory.usage_in_bytes", "900\n");
  mount.write("memory/app/memory.stat",
              "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 100\n");
  EXPECT_EQ(mount.left("12:memory:/app\n4:cpu,cpuacct:/app\n"), 400);
  EXPECT_EQ(mount.left("4:cpu:/app\n"), -1);
}

TEST(some_memory_is_available) {
  EXPECT(pb::available_memory() > size_t{1} << 20);
  EXPECT(pb::available_memory() < size_t{1} << 50);
}

PB_TEST_MAIN()
