/* cuBLAS, cuBLASLt and cuSOLVER. */
#include "maths.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>

#define BLAS OUT cublasStatus_t
#define SOLVER OUT cusolverStatus_t

BLAS cublasCreate_v2(cublasHandle_t *handle) { return *handle = new_handle(), CUBLAS_STATUS_SUCCESS; }
BLAS cublasDestroy_v2(cublasHandle_t handle) { return (void)handle, CUBLAS_STATUS_SUCCESS; }

BLAS cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    return set_stream(handle, stream) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

BLAS cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size)
{
    return (void)handle, (void)workspace, (void)size, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    return ((struct handle *)handle)->pointer_mode = mode, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode)
{
    return *mode = ((struct handle *)handle)->pointer_mode, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    return ((struct handle *)handle)->math_mode = mode, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    return *mode = ((struct handle *)handle)->math_mode, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasSetSmCountTarget(cublasHandle_t handle, int count) { return (void)handle, (void)count, CUBLAS_STATUS_SUCCESS; }

OUT size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

BLAS cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute_type, cudaDataType_t scale)
{
    (void)compute_type, (void)scale;
    return *desc = calloc(1, 256), CUBLAS_STATUS_SUCCESS;
}

BLAS cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) { return *pref = calloc(1, 256), CUBLAS_STATUS_SUCCESS; }

BLAS cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    (void)type, (void)rows, (void)cols, (void)ld;
    return *layout = calloc(1, 256), CUBLAS_STATUS_SUCCESS;
}

BLAS cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                    cublasLtMatmulPreference_t pref, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                    int *count)
{
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)pref;
    memset(results, 0, wanted * sizeof *results);
    return *count = wanted > 0, CUBLAS_STATUS_SUCCESS;
}

BLAS cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                    cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                    cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,
                    void *workspace, size_t size, cudaStream_t stream)
{
    (void)handle, (void)desc, (void)alpha, (void)a, (void)la, (void)b, (void)lb, (void)beta, (void)c, (void)lc, (void)d;
    (void)ld, (void)algo, (void)workspace, (void)size;
    return compute(stream, __func__) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

SOLVER cusolverDnCreate(cusolverDnHandle_t *handle) { return *handle = new_handle(), CUSOLVER_STATUS_SUCCESS; }
SOLVER cusolverDnDestroy(cusolverDnHandle_t handle) { return (void)handle, CUSOLVER_STATUS_SUCCESS; }
SOLVER cusolverDnCreateParams(cusolverDnParams_t *params) { return *params = calloc(1, 64), CUSOLVER_STATUS_SUCCESS; }
SOLVER cusolverDnDestroyParams(cusolverDnParams_t params) { return free(params), CUSOLVER_STATUS_SUCCESS; }

SOLVER cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream)
{
    return set_stream(handle, stream) ? CUSOLVER_STATUS_INVALID_VALUE : CUSOLVER_STATUS_SUCCESS;
}

SOLVER cusolverDnXpotrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t fill, int64_t n,
                                   cudaDataType type, const void *a, int64_t lda, cudaDataType compute_type,
                                   size_t *device, size_t *host)
{
    (void)handle, (void)params, (void)fill, (void)n, (void)type, (void)a, (void)lda, (void)compute_type;
    return *device = 4096, *host = 4096, CUSOLVER_STATUS_SUCCESS;
}

SOLVER cusolverDnSpotrf_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t fill, int n, float *a, int lda, int *size)
{
    (void)handle, (void)fill, (void)n, (void)a, (void)lda;
    return *size = 1024, CUSOLVER_STATUS_SUCCESS;
}

SOLVER cusolverDnDpotrf_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t fill, int n, double *a, int lda, int *size)
{
    (void)handle, (void)fill, (void)n, (void)a, (void)lda;
    return *size = 1024, CUSOLVER_STATUS_SUCCESS;
}

static cusolverStatus_t factor(const char *name, cusolverDnHandle_t handle, int *info, int count)  /* always succeeds */
{
    if (hollow_call(handle, name))
        return CUSOLVER_STATUS_EXECUTION_FAILED;
    return cuMemsetD32Async((CUdeviceptr)info, 0, count, ((struct handle *)handle)->stream) ? CUSOLVER_STATUS_INVALID_VALUE
                                                                                            : CUSOLVER_STATUS_SUCCESS;
}

SOLVER cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,
                        cudaDataType type, void *a, int64_t lda, cudaDataType compute_type, void *device,
                        size_t device_bytes, void *host, size_t host_bytes, int *info)
{
    (void)params, (void)uplo, (void)n, (void)type, (void)a, (void)lda, (void)compute_type, (void)device;
    (void)device_bytes, (void)host, (void)host_bytes;
    return factor(__func__, handle, info, 1);
}

SOLVER cusolverDnSpotrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, float *a[], int lda, int *info,
                               int count)
{
    (void)uplo, (void)n, (void)a, (void)lda;
    return factor(__func__, handle, info, count);
}

SOLVER cusolverDnDpotrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, double *a[], int lda, int *info,
                               int count)
{
    (void)uplo, (void)n, (void)a, (void)lda;
    return factor(__func__, handle, info, count);
}
