#include <thread>

#include "base/cores.h"

#ifdef __linux__
#include <sched.h>
#endif

#include "check.h"
#include "fake_cgroups.h"

namespace {

class FakeMount : public pb::test::FakeCgroups {
 public:
  int cores(const std::string& self_cgroup) const {  // 0 = no limit
    return pb::cgroup_cores(path(), self_cgroup).value_or(0);
  }
};

}  // namespace

TEST(v2_quota_is_rounded_up) {
  FakeMount mount;
  mount.write("app/cpu.max", "150000 100000\n");
  EXPECT_EQ(mount.cores("0::/app\n"), 2);
  mount.write("app/cpu.max", "200000 100000\n");
  EXPECT_EQ(mount.cores("0::/app\n"), 2);
  mount.write("app/cpu.max", "1000 100000\n");
  EXPECT_EQ(mount.cores("0::/app\n"), 1);
  mount.write("app/cpu.max", "max 100000\n");
  EXPECT_EQ(mount.cores("0::/app\n"), 0);
}

TEST(the_smallest_quota_on_the_way_to_the_root_counts) {
  FakeMount mount;
  mount.write("slice/app/cpu.max", "max 100000\n");
  mount.write("slice/cpu.max", "300000 100000\n");
  mount.write("cpu.max", "700000 100000\n");
  EXPECT_EQ(mount.cores("0::/slice/app\n"), 3);
  EXPECT_EQ(mount.cores("0::/elsewhere\n"), 7);
  EXPECT_EQ(mount.cores("0::/\n"), 7);
}

TEST(v1_quota_is_read_where_the_cpu_controller_is) {
  FakeMount mount;
  mount.write("cpu/app/cpu.cfs_quota_us", "250000\n");
  mount.write("cpu/app/cpu.cfs_period_us", "100000\n");
  mount.write("memory/app/cpu.cfs_quota_us", "100000\n");
  mount.write("memory/app/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(mount.cores("12:memory:/app\n4:cpu,cpuacct:/app\n3:cpuset:/app\n"), 3);
  EXPECT_EQ(mount.cores("4:cpuacct,cpu:/app\n"), 3);
  EXPECT_EQ(mount.cores("3:cpuset:/app\n"), 0);
  mount.write("cpu/app/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(mount.cores("4:cpu:/app\n"), 0);
}

TEST(a_container_sees_its_quota_at_the_root_under_a_path_of_the_host) {
  FakeMount mount;
  mount.write("cpu/cpu.cfs_quota_us", "400000\n");
  mount.write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(mount.cores("4:cpu,cpuacct:/docker/0123abcd\n"), 4);
}

TEST(what_does_not_parse_is_no_limit) {
  FakeMount mount;
  for (const char* text : {"", "\n", "max", "100000", "x y", "-5 100000", "100000 0", "nan nan"}) {
    mount.write("app/cpu.max", text);
    EXPECT_EQ(mount.cores("0::/app\n"), 0);
  }
  for (const char* text : {"", "::", "0:", "no colons", "0::", "\n\n"}) {
    EXPECT_EQ(mount.cores(text), 0);
  }
}

TEST(available_cores_is_within_the_machine_and_the_affinity_mask) {
  const int cores = pb::available_cores();
  EXPECT(cores >= 1);
  EXPECT(cores <= static_cast<int>(std::thread::hardware_concurrency()));
#ifdef __linux__
  cpu_set_t before;
  EXPECT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(pb::available_cores(), 1);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
#endif
}

PB_TEST_MAIN()
