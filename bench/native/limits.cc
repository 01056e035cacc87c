// The limits of this machine as one JSON object:
//   bench_limits [threads] [MiB to read]
#include <cstdio>
#include <cstdlib>

#include "machine_limits.h"
#include "os/cores.h"

int main(int argc, char** argv) {
  using namespace pb;
  const int asked = argc > 1 ? std::atoi(argv[1]) : 0;
  const int mebibytes = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1024;
  ThreadPool pool(asked > 0 ? asked : available_cores());
  const AlignedBuffer data = bench::make_readable(static_cast<size_t>(mebibytes) << 20);
  std::vector<double> seconds;
  for (const double start = bench::now(); seconds.size() < 3 || bench::now() - start < 1.0;) {
    seconds.push_back(bench::read_once(pool, data));
  }
  const double bytes = static_cast<double>(data.bytes());
  std::printf("{\"threads\": %d, \"read_mib\": %d, \"read_gb_s\": %.2f, \"read_best_gb_s\": %.2f",
              pool.n_threads(), mebibytes, bytes / bench::median(seconds) / 1e9,
              bytes / *std::ranges::min_element(seconds) / 1e9);
  std::printf(", \"peak_gop_s\": {");
  const char* separator = "";
  for (const bench::Peak& peak : bench::peaks(pool)) {
    std::printf("%s\"%s\": %.0f", separator, peak.name, peak.gop_s);
    separator = ", ";
  }
  std::printf("}}\n");
}
