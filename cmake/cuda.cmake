# Decides whether the build has CUDA, by PYBATCHER_CUDA: AUTO uses nvcc if it works, ON fails without it,
# OFF does not look for it. Sets PB_CUDA_TOOLKIT (nvcc's version) and PB_CUDA_ARCHITECTURES (80;89;...); in
# a build without CUDA both are empty, and PB_CUDA_PROBLEM has the reason. Prints one line.
# It also runs as a script: cmake -DPYBATCHER_CUDA=ON -P cmake/cuda.cmake

set(PYBATCHER_CUDA AUTO CACHE STRING "Build with CUDA: AUTO (where nvcc works), ON or OFF")
set_property(CACHE PYBATCHER_CUDA PROPERTY STRINGS AUTO ON OFF)

# sm_100 is compiled if nvcc supports it (12.8 and newer). PTX is not included, because the driver would
# compile it at the start.
set(PB_CUDA_REQUIRED 80 89 90)
set(PB_CUDA_WHERE_KNOWN 100)

# Finds the compiler of CMake's own variables, one on PATH, or the one of NVIDIA's installer.
function(pb_find_nvcc)
  if(NOT CMAKE_CUDA_COMPILER AND NOT "$ENV{CUDACXX}" STREQUAL "")
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}" CACHE FILEPATH "CUDA compiler")
  endif()
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin DOC "CUDA compiler")
endfunction()

# Sets PB_CUDA_TOOLKIT and PB_CUDA_ARCHITECTURES if `nvcc` compiles for all of them and links against
# the runtime library, and else PB_CUDA_PROBLEM.
function(pb_try_nvcc nvcc)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE about ERROR_VARIABLE about)
  if(NOT about MATCHES "release [0-9.]+, V([0-9.]+)")
    set(PB_CUDA_PROBLEM "${nvcc} does not answer as nvcc does" PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}")
  if(version VERSION_LESS 12)  # 12 is the first with C++20
    set(PB_CUDA_PROBLEM "${nvcc} is of version ${version}, and 12 is the oldest that will do"
        PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures ${PB_CUDA_REQUIRED})
  foreach(architecture ${PB_CUDA_WHERE_KNOWN})
    if("${known}\n" MATCHES "sm_${architecture}\n")
      list(APPEND architectures ${architecture})
    endif()
  endforeach()

  set(tried "${nvcc} ${version} ${architectures}")
  if(NOT PB_CUDA_WORKS STREQUAL tried)  # tried once, because compiling takes seconds
    set(flags "")
    foreach(architecture ${architectures})
      list(APPEND flags "-gencode=arch=compute_${architecture},code=sm_${architecture}")
    endforeach()
    set(folder ${CMAKE_BINARY_DIR}/CMakeFiles/pybatcher_cuda)
    file(WRITE ${folder}/try.cu
         "#include <cuda_bf16.h>\n"
         "__global__ void one(__nv_bfloat16* x) { *x = __float2bfloat16(1.0f); }\n"
         "int main() { one<<<1, 1>>>(nullptr); return cudaGetLastError(); }\n")
    execute_process(COMMAND ${nvcc} ${flags} -o try try.cu WORKING_DIRECTORY ${folder}
                    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT status EQUAL 0)
      string(REGEX MATCH "[^\n]*(error|fatal|cannot)[^\n]*" complaint "${output}")  # the first
      set(PB_CUDA_PROBLEM "${nvcc} cannot build a small program: ${complaint}" PARENT_SCOPE)
      return()
    endif()
    set(PB_CUDA_WORKS "${tried}" CACHE INTERNAL "nvcc that builds programs, and for what")
  endif()
  set(PB_CUDA_TOOLKIT "${version}" PARENT_SCOPE)
  set(PB_CUDA_ARCHITECTURES "${architectures}" PARENT_SCOPE)
endfunction()

set(PB_CUDA_TOOLKIT "")
set(PB_CUDA_ARCHITECTURES "")
set(PB_CUDA_PROBLEM "")
if(PYBATCHER_CUDA STREQUAL "OFF")
  set(PB_CUDA_PROBLEM "PYBATCHER_CUDA is OFF")
elseif(PYBATCHER_CUDA MATCHES "^(AUTO|ON)$")
  pb_find_nvcc()
  if(NOT CMAKE_CUDA_COMPILER)
    set(PB_CUDA_PROBLEM "there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
  else()
    pb_try_nvcc("${CMAKE_CUDA_COMPILER}")
  endif()
else()
  message(FATAL_ERROR "PYBATCHER_CUDA is '${PYBATCHER_CUDA}'; it must be AUTO, ON or OFF")
endif()

if(PB_CUDA_TOOLKIT)
  list(TRANSFORM PB_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE named)
  list(JOIN named " " named)
  message(STATUS "CUDA: toolkit ${PB_CUDA_TOOLKIT} for ${named}")
elseif(PYBATCHER_CUDA STREQUAL "ON")
  message(FATAL_ERROR
    "PYBATCHER_CUDA is ON, but ${PB_CUDA_PROBLEM}. Get a CUDA toolkit of version 12 or newer: from "
    "https://developer.nvidia.com/cuda-downloads or from your distribution; name it, "
    "where it lies elsewhere, by the environment variable CUDACXX "
    "or -DCMAKE_CUDA_COMPILER=/path/to/nvcc; or build with PYBATCHER_CUDA=OFF.")
else()
  message(STATUS "CUDA: none, ${PB_CUDA_PROBLEM}")
endif()
