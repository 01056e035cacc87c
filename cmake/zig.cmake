# A toolchain file: compiles with zig's clang and libc++ for PB_ZIG_TARGET, a triple of zig's as
# x86_64-linux-gnu.2.28, whose end is the oldest glibc that what is built runs with. PB_ZIG is the zig
# of the ziglang package: python -c 'import ziglang; print(ziglang.__path__[0] + "/zig")'. CMake wants
# tools as single programs, so they are small scripts in the build folder.
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
      # An architecture as gcc has it (armv8.2-a+dotprod) is a CPU with features for zig.
      string(APPEND translated "for word; do\n  shift\n  case $word in -march=armv8.2-a*) "
                               "word=-mcpu=generic+v8_2a\${word#-march=armv8.2-a};; esac\n"
                               "  set -- \"$@\" \"$word\"\ndone\n")
      # Pragmas name warnings of gcc.
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
