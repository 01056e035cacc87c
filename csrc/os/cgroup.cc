#include "os/cgroup.h"

#include <fstream>
#include <sstream>

namespace pb {
namespace {

// Returns true if a list like "a,b,c" has the item.
bool has_item(std::string_view list, std::string_view item) {
  while (true) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == item) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

void for_each_cgroup(const std::string& mount, std::string_view self_cgroup,
                     std::string_view controller,
                     FunctionRef<void(const std::string&, bool)> visit) {
  std::istringstream lines{std::string(self_cgroup)};
  std::string line;
  while (std::getline(lines, line)) {  // the format is "hierarchy:controllers:/path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !has_item(controllers, controller)) continue;
    const std::string base = v2 ? mount : mount + "/" + std::string(controller);
    // Inside a container, the path may be a path of the host, of which only the root is mounted
    // here. So directories that do not exist are ignored, and the root is always visited.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      visit(base + path, v2);
      if (path.find('/') == std::string::npos) break;
    }
  }
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string self_cgroup_text() { return text_of("/proc/self/cgroup"); }

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace pb
