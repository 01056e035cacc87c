# Toolchain file for zig's clang and libc++. PB_ZIG_TARGET is one of zig's triples, such as
# x86_64-linux-gnu.2.28, which ends with the oldest supported glibc. PB_ZIG is the zig of the ziglang
# package: python -c 'import ziglang; print(ziglang.__path__[0] + "/zig")'. CMake requires single programs
# as tools, so the build folder has small scripts for them.
foreach(variable PB_ZIG PB_ZIG_TARGET)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "cmake/zig.cmake needs -D${variable}=...")
  endif()
endforeach()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PB_ZIG PB_ZIG_TARGET)

string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR ${PB_ZIG_TARGET})
if(PB_ZIG_TARGET MATCHES "-macos")
  set(CMAKE_SYSTEM_NAME Darwin)
elseif(PB_ZIG_TARGET MATCHES "-windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()

set(tools ${CMAKE_BINARY_DIR}/zig-${PB_ZIG_TARGET})
foreach(tool c++ cc ar ranlib)
  if(NOT EXISTS ${tools}/${tool})
    set(words ${tool})
    set(translated "")
    if(tool MATCHES "^c")
      # Converts gcc's name of an architecture (armv8.2-a+dotprod) to zig's CPU with features.
      string(APPEND translated "for word; do\n  shift\n  case $word in -march=armv8.2-a*) "
                               "word=-mcpu=generic+v8_2a\${word#-march=armv8.2-a};; esac\n"
                               "  set -- \"$@\" \"$word\"\ndone\n")
      # Pragmas in the code name warnings of gcc.
      string(APPEND words " -target ${PB_ZIG_TARGET} -Wno-unknown-warning-option")
    endif()
    file(WRITE ${tools}/${tool} "#!/bin/sh\n${translated}exec '${PB_ZIG}' ${words} \"$@\"\n")
    file(CHMOD ${tools}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
endforeach()
set(CMAKE_C_COMPILER ${tools}/cc)
set(CMAKE_CXX_COMPILER ${tools}/c++)
set(CMAKE_AR ${tools}/ar CACHE FILEPATH "Archiver")
set(CMAKE_RANLIB ${tools}/ranlib CACHE FILEPATH "Indexer of archives")

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
