#include "os/memory.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <charconv>

#include "os/cgroup.h"

namespace pb {
namespace {

// Parses a number. Returns nothing for "max" and for text that is not a number.
std::optional<size_t> number(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// Returns the number after `name` and spaces at the beginning of a line.
std::optional<size_t> field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.starts_with(name)) {
      line.remove_prefix(name.size());
      const size_t begin = line.find_first_not_of(' ');
      if (begin > 0 && begin != std::string_view::npos) return number(line.substr(begin));
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> available_of(std::string_view meminfo) {
  const auto kib = field(meminfo, "MemAvailable:");
  return kib ? std::optional(*kib << 10) : std::nullopt;
}

std::optional<size_t> cgroup_memory(const std::string& mount, std::string_view self_cgroup) {
  std::optional<size_t> least;
  for_each_cgroup(mount, self_cgroup, "memory", [&](const std::string& directory, bool v2) {
    const auto read = [&](const char* of_v2, const char* of_v1) {
      return number(first_line(directory + "/" + (v2 ? of_v2 : of_v1)));
    };
    const auto limit = read("memory.max", "memory.limit_in_bytes");
    const auto used = read("memory.current", "memory.usage_in_bytes");
    if (!limit || !used) return;
    const std::string statistics = text_of(directory + "/memory.stat");
    const size_t files =
        field(statistics, v2 ? "inactive_file" : "total_inactive_file").value_or(0) +
        field(statistics, v2 ? "active_file" : "total_active_file").value_or(0);
    const size_t kept = *used - std::min(*used, files);
    const size_t left = *limit - std::min(*limit, kept);
    if (!least || left < *least) least = left;
  });
  return least;
}

#ifdef _WIN32
size_t available_memory() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  return GlobalMemoryStatusEx(&status) ? static_cast<size_t>(status.ullAvailPhys) : 0;
}
#else
size_t available_memory() {
  const auto pages = static_cast<size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<size_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  const size_t available = available_of(text_of("/proc/meminfo")).value_or(pages * page / 2);
  const auto left = cgroup_memory("/sys/fs/cgroup", self_cgroup_text());
  return left ? std::min(available, *left) : available;
}
#endif

}  // namespace pb
