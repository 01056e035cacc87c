# What PYBATCHER_CUDA does with no nvcc, with ones that do not work and with ones that do: each played
# by a shell script.
#   cmake -P check_cuda_option.cmake
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
set(folder ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/check_cuda_option)
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder})

# An nvcc of that version, which knows sm_`newest` besides others, and compiles if `compiles` is 0.
function(write_nvcc name version newest compiles)
  file(WRITE ${folder}/${name} "#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release 1.2, V${version}' ;;
  --list-gpu-code) printf 'sm_80\\nsm_90\\nsm_${newest}\\n' ;;
  *) echo 'one.h: warning: old'; echo 'nvcc fatal   : no \"host\" compiler'; exit ${compiles} ;;
esac
")
  file(CHMOD ${folder}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

# Runs cmake/cuda.cmake with that PYBATCHER_CUDA and that nvcc, none if it is empty; expects success
# or not, and this in what it says, of which | is the end.
function(expect option nvcc succeeds said)
  if(nvcc)
    set(arguments -DCMAKE_CUDA_COMPILER=${folder}/${nvcc})
  else()  # not even where one is
    set(arguments -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
                  -DCMAKE_IGNORE_PATH=/usr/local/cuda/bin)
  endif()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CUDACXX --unset=CUDA_HOME --unset=CUDA_PATH
            ${CMAKE_COMMAND} -DPYBATCHER_CUDA=${option} ${arguments} -P ${root}/cmake/cuda.cmake
    WORKING_DIRECTORY ${folder} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}|")
  string(FIND "${output}" "${said}" at)
  if(at EQUAL -1 OR (succeeds AND NOT status EQUAL 0) OR (NOT succeeds AND status EQUAL 0))
    message(SEND_ERROR "${option} with nvcc '${nvcc}': status ${status}, wanted '${said}', got: ${output}")
  endif()
endfunction()

write_nvcc(good 12.9.1 100 0)
write_nvcc(older 12.4.1 100x 0)
write_nvcc(ancient 11.8.0 90 0)
write_nvcc(broken 13.0.1 100 1)
file(WRITE ${folder}/text "no program")

expect(OFF "" TRUE "-- CUDA: none, PYBATCHER_CUDA is OFF")
expect(OFF good TRUE "-- CUDA: none, PYBATCHER_CUDA is OFF")
expect(AUTO "" TRUE "-- CUDA: none, there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
expect(ON "" FALSE "PYBATCHER_CUDA is ON, but there is no nvcc on PATH")
expect(ON "" FALSE "https://developer.nvidia.com/cuda-downloads")
expect(ON "" FALSE "build with PYBATCHER_CUDA=OFF")
foreach(option AUTO ON)
  expect(${option} good TRUE "-- CUDA: toolkit 12.9.1 for sm_80 sm_89 sm_90 sm_100 |")
  expect(${option} older TRUE "-- CUDA: toolkit 12.4.1 for sm_80 sm_89 sm_90 |")
endforeach()
expect(AUTO ancient TRUE "ancient is of version 11.8.0, and 12 is the oldest that will do")
expect(AUTO broken TRUE "broken cannot build a small program: nvcc fatal : no \"host\" compiler")
expect(ON broken FALSE "PYBATCHER_CUDA is ON, but ${folder}/broken cannot build")
expect(AUTO text TRUE "text does not answer as nvcc does")
expect(AUTO missing TRUE "missing does not answer as nvcc does")
expect(maybe "" FALSE "PYBATCHER_CUDA is 'maybe'; it must be AUTO, ON or OFF")
