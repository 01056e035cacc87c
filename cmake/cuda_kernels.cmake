# Compiles csrc/cuda/image/kernels.cu for every architecture of PB_CUDA_ARCHITECTURES and adds the
# image to a library, as kernel_image(). That takes minutes, so it needs PYBATCHER_CUDA=ON; all other
# builds have an empty image. Needs cmake/cuda.cmake.

# The options of nvcc for kernels, here and in tools/check_kernels.py. -fmad=false: a*b + c rounds
# once where the code says fma and twice elsewhere (invariant 1).
set(PB_NVCC_FLAGS -std=c++20 -O3 -fmad=false -Werror all-warnings)

function(pb_add_cuda_kernels target)
  set(PB_HAS_KERNEL_IMAGE 0)
  set(PB_KERNEL_IMAGE ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernels.fatbin)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernel_image.cc)
  if(PB_CUDA_TOOLKIT AND PYBATCHER_CUDA STREQUAL "ON")
    set(PB_HAS_KERNEL_IMAGE 1)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/image/kernels.cu)
    # Compute capability 9.0 is compiled as sm_90a, which has wgmma; every GPU of 9.0 supports it. All
    # other architectures share one PTX, because generating it takes longer than ptxas.
    set(of_80 ${PB_CUDA_ARCHITECTURES})
    list(REMOVE_ITEM of_80 90)
    list(TRANSFORM of_80 PREPEND "sm_")
    list(JOIN of_80 "," of_80)
    set(architectures -gencode=arch=compute_80,code=[${of_80}] -gencode=arch=compute_90a,code=sm_90a)
    file(GLOB device_code CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.cu
         ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.cuh ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*/*.h
         ${CMAKE_CURRENT_SOURCE_DIR}/csrc/formats/*.h)
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
