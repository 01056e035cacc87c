#include <thread>

#include "os/cores.h"

#ifdef __linux__
#include <sched.h>
#endif

#include "check.h"
#include "fake_cgroups.h"

namespace {

class FakeMount : public pb::test::FakeCgroups {
 public:
  double quota(const std::string& self_cgroup) const {  // 0 = no limit
    return pb::cgroup_quota(path(), self_cgroup).value_or(0);
  }
};

pb::Cores cores_of(int n_cores, std::optional<double> quota) {
  return {{.n_online = 2 * n_cores, .n_cpus = 2 * n_cores, .n_cores = n_cores}, quota};
}

}  // namespace

TEST(v2_quota_is_time_over_period) {
  FakeMount mount;
  mount.write("app/cpu.max", "150000 100000\n");
  EXPECT_EQ(mount.quota("0::/app\n"), 1.5);
  mount.write("app/cpu.max", "100000 50000\n");
  EXPECT_EQ(mount.quota("0::/app\n"), 2.0);
  mount.write("app/cpu.max", "1000 100000\n");
  EXPECT_EQ(mount.quota("0::/app\n"), 0.01);
  mount.write("app/cpu.max", "max 100000\n");
  EXPECT_EQ(mount.quota("0::/app\n"), 0.0);
}

TEST(the_smallest_quota_on_the_way_to_the_root_counts) {
  FakeMount mount;
  mount.write("slice/app/cpu.max", "max 100000\n");
  mount.write("slice/cpu.max", "300000 100000\n");
  mount.write("cpu.max", "700000 100000\n");
  EXPECT_EQ(mount.quota("0::/slice/app\n"), 3.0);
  EXPECT_EQ(mount.quota("0::/elsewhere\n"), 7.0);
  EXPECT_EQ(mount.quota("0::/\n"), 7.0);
}

TEST(v1_quota_is_read_where_the_cpu_controller_is) {
  FakeMount mount;
  mount.write("cpu/app/cpu.cfs_quota_us", "250000\n");
  mount.write("cpu/app/cpu.cfs_period_us", "100000\n");
  mount.write("memory/app/cpu.cfs_quota_us", "100000\n");
  mount.write("memory/app/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(mount.quota("12:memory:/app\n4:cpu,cpuacct:/app\n3:cpuset:/app\n"), 2.5);
  EXPECT_EQ(mount.quota("4:cpuacct,cpu:/app\n"), 2.5);
  EXPECT_EQ(mount.quota("3:cpuset:/app\n"), 0.0);
  mount.write("cpu/app/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(mount.quota("4:cpu:/app\n"), 0.0);
}

TEST(a_container_sees_its_quota_at_the_root_under_a_path_of_the_host) {
  FakeMount mount;
  mount.write("cpu/cpu.cfs_quota_us", "400000\n");
  mount.write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(mount.quota("4:cpu,cpuacct:/docker/0123abcd\n"), 4.0);
}

TEST(what_does_not_parse_is_no_limit) {
  FakeMount mount;
  for (const char* text : {"", "\n", "max", "100000", "x y", "-5 100000", "100000 0", "nan nan"}) {
    mount.write("app/cpu.max", text);
    EXPECT_EQ(mount.quota("0::/app\n"), 0.0);
  }
  for (const char* text : {"", "::", "0:", "no colons", "0::", "\n\n"}) {
    EXPECT_EQ(mount.quota(text), 0.0);
  }
}

TEST(there_is_a_thread_a_core_or_less_where_a_quota_is_less) {
  EXPECT_EQ(cores_of(8, std::nullopt).n_threads(), 8);
  EXPECT_EQ(cores_of(8, 16.0).n_threads(), 8);
  EXPECT_EQ(cores_of(8, 8.0).n_threads(), 8);
  EXPECT_EQ(cores_of(8, 7.5).n_threads(), 8);  // rounded up
  EXPECT_EQ(cores_of(8, 2.0).n_threads(), 2);
  EXPECT_EQ(cores_of(8, 1.01).n_threads(), 2);
  EXPECT_EQ(cores_of(8, 0.01).n_threads(), 1);
  EXPECT_EQ(cores_of(8, 1e5).n_threads(), 8);
  EXPECT_EQ(cores_of(0, std::nullopt).n_threads(), 1);
  EXPECT_EQ(cores_of(2000, std::nullopt).n_threads(), pb::kMostThreads);
  EXPECT_EQ(cores_of(2000, 1500.0).n_threads(), pb::kMostThreads);
}

TEST(a_machine_is_read_below_its_root) {
  FakeMount root;  // four cores of two threads, in a container of 2.5 CPUs below a limit of 6
  root.write("proc/self/cgroup", "0::/pods/one\n");
  root.write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/pods/cpu.max", "600000 100000\n");
  root.write("sys/devices/system/cpu/online", "0-7\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int first = cpu / 2 * 2;
    root.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list",
               std::to_string(first) + "-" + std::to_string(first + 1) + "\n");
  }
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  pb::Cores cores = pb::read_cores(root.path(), all);
  EXPECT_EQ(cores.cpus.n_cores, 4);
  EXPECT_EQ(cores.quota.value_or(0), 6.0);
  EXPECT_EQ(cores.n_threads(), 4);
  EXPECT_EQ(pb::read_cores(root.path(), {2, 3}).n_threads(), 1);
  root.write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  cores = pb::read_cores(root.path(), all);
  EXPECT_EQ(cores.quota.value_or(0), 2.5);
  EXPECT_EQ(cores.n_threads(), 3);
}

TEST(a_machine_that_shows_nothing_has_as_many_cores_as_the_mask) {
  const pb::Cores cores = pb::read_cores("/no/such/root", {0, 1, 5});
  EXPECT_EQ(cores.n_threads(), 3);
  EXPECT(!cores.quota);
  EXPECT_EQ(pb::read_cores("/no/such/root", {}).n_threads(), 1);
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
