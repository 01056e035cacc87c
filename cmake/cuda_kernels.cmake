# Compiles csrc/cuda/image/kernels.cu for every architecture of PB_CUDA_ARCHITECTURES and gives the
# image to a library, as kernel_image(). That takes minutes, so a build has to ask for it by
# PYBATCHER_CUDA=ON; all others have an empty image. Needs cmake/cuda.cmake.

# What nvcc compiles kernels with, here and in tools/check_kernels.py. -fmad=false: a*b + c is one
# rounding where the code says fma and two where it does not (invariant 1).
set(PB_NVCC_FLAGS -std=c++20 -O3 -fmad=false -Werror all-warnings)

function(pb_add_cuda_kernels target)
  set(PB_HAS_KERNEL_IMAGE 0)
  set(PB_KERNEL_IMAGE ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernels.fatbin)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernel_image.cc)
  if(PB_CUDA_TOOLKIT AND PYBATCHER_CUDA STREQUAL "ON")
    set(PB_HAS_KERNEL_IMAGE 1)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/image/kernels.cu)
    # Of 9.0 with wgmma, which sm_90a alone has: every GPU of 9.0 is one. All others have code of the
    # same PTX: making it takes longer than what ptxas makes of it.
    set(of_80 ${PB_CUDA_ARCHITECTURES})
    list(REMOVE_ITEM of_80 90)
    list(TRANSFORM of_80 PREPEND "sm_")
    list(JOIN of_80 "," of_80)
    set(architectures -gencode=arch=compute_80,code=[${of_80}] -gencode=arch=compute_90a,code=sm_90a)
    file(GLOB device_code CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.cu
         ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.cuh ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.h)
    add_custom_command(
      OUTPUT ${PB_KERNEL_IMAGE}
      COMMAND ${CMAKE_CUDA_COMPILER} ${PB_NVCC_FLAGS} ${architectures} --threads 0 -fatbin
              -I${CMAKE_CURRENT_SOURCE_DIR}/csrc -o ${PB_KERNEL_IMAGE} ${source}
      DEPENDS ${device_code} COMMENT "Compiling CUDA kernels for ${PB_CUDA_ARCHITECTURES}"
      VERBATIM)
    set_source_files_properties(${generated} PROPERTIES OBJECT_DEPENDS ${PB_KERNEL_IMAGE})
  endif()
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/image/kernel_image.cc.in ${generated} @ONLY)
  target_sources(${target} PRIVATE ${generated})
endfunction()
