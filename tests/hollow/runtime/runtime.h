/* The CUDA runtime on top of the hollow driver (../driver/hollow.h), from cuda_runtime_api.h and crt/host_runtime.h alone.
 *
 * It holds what torch 2.13 and extensions built with nvcc import from libcudart.so.13, and is preloaded in front of it:
 * NVIDIA's own runtime needs undocumented parts of the driver.
 */
#ifndef HOLLOW_RUNTIME_H
#define HOLLOW_RUNTIME_H
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RT __attribute__((visibility("default"))) cudaError_t CUDARTAPI
#define OUT __attribute__((visibility("default")))

extern __thread cudaError_t last;  /* what cudaGetLastError gives */
cudaError_t done(CUresult result);
CUresult start(void);

/* DO(call) starts the runtime and makes the call. */
#define DO(call) do { CUresult result_ = start(); return done(result_ == CUDA_SUCCESS ? (call) : result_); } while (0)
#define BEGIN() do { CUresult result_ = start(); if (result_ != CUDA_SUCCESS) return done(result_); } while (0)

#endif
