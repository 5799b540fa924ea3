/* cuDNN. */
#include "maths.h"
#include <cudnn.h>

#define DNN OUT cudnnStatus_t

DNN cudnnCreate(cudnnHandle_t *handle) { return *handle = new_handle(), CUDNN_STATUS_SUCCESS; }
OUT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
OUT size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
OUT const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "a hollow error" : "CUDNN_STATUS_SUCCESS"; }
OUT void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "a hollow error"); }

DNN cudnnGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}

DNN cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    return set_stream(handle, stream) ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

DNN cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    return *stream = ((struct handle *)handle)->stream, CUDNN_STATUS_SUCCESS;
}

struct descriptor { int dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX], n; cudnnDataType_t type; };
struct rnn { int cell, bias, directions, input, hidden, layers; cudnnDataType_t type; };

#define CREATE(name, handle) DNN name(handle *out) { return *out = calloc(1, 256), CUDNN_STATUS_SUCCESS; }
CREATE(cudnnCreateTensorDescriptor, cudnnTensorDescriptor_t)
CREATE(cudnnCreateFilterDescriptor, cudnnFilterDescriptor_t)
CREATE(cudnnCreateConvolutionDescriptor, cudnnConvolutionDescriptor_t)
CREATE(cudnnCreateActivationDescriptor, cudnnActivationDescriptor_t)
CREATE(cudnnCreatePoolingDescriptor, cudnnPoolingDescriptor_t)
CREATE(cudnnCreateDropoutDescriptor, cudnnDropoutDescriptor_t)
CREATE(cudnnCreateRNNDescriptor, cudnnRNNDescriptor_t)
CREATE(cudnnCreateRNNDataDescriptor, cudnnRNNDataDescriptor_t)
_Static_assert(sizeof(struct descriptor) <= 256 && sizeof(struct rnn) <= 256, "descriptors are 256 bytes");

DNN cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t out, cudnnDataType_t type, int n, const int *dims, const int *strides)
{
    struct descriptor *d = (struct descriptor *)out;
    if (n > CUDNN_DIM_MAX)
        return CUDNN_STATUS_NOT_SUPPORTED;
    d->n = n, d->type = type;
    memcpy(d->dims, dims, n * sizeof *dims);
    memcpy(d->strides, strides, n * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

DNN cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t in, int wanted, cudnnDataType_t *type, int *n, int *dims,
                               int *strides)
{
    const struct descriptor *d = (const struct descriptor *)in;
    int count = wanted < d->n ? wanted : d->n;
    *type = d->type, *n = d->n;
    memcpy(dims, d->dims, count * sizeof *dims);
    memcpy(strides, d->strides, count * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

DNN cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size) { return (void)handle, *size = 4096, CUDNN_STATUS_SUCCESS; }

DNN cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t out, cudnnRNNAlgo_t algo, cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                             cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode, cudnnDataType_t type,
                             cudnnDataType_t precision, cudnnMathType_t math, int32_t input, int32_t hidden,
                             int32_t projection, int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    (void)algo, (void)input_mode, (void)precision, (void)math, (void)projection, (void)dropout, (void)flags;
    *(struct rnn *)out = (struct rnn){cell, bias, direction == CUDNN_BIDIRECTIONAL ? 2 : 1, input, hidden, layers, type};
    return CUDNN_STATUS_SUCCESS;
}

static int gates(const struct rnn *r)  /* matrices of a layer: half for the input, half for the state */
{
    return r->cell == CUDNN_LSTM ? 8 : r->cell == CUDNN_GRU ? 6 : 2;
}

static size_t element(const struct rnn *r)
{
    return r->type == CUDNN_DATA_DOUBLE ? 8 : r->type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static size_t width(const struct rnn *r, int pseudo, int gate)
{
    if (gate >= gates(r) / 2)
        return r->hidden;
    return pseudo < r->directions ? r->input : r->directions * r->hidden;
}

/* All matrices, layer by layer and gate by gate, then all biases: the offset in elements of what is asked for. */
static size_t offset_of(const struct rnn *r, int pseudo, int gate, bool bias)
{
    size_t offset = 0;
    for (int p = 0; p < r->layers * r->directions; p++)
        for (int g = 0; g < gates(r); g++) {
            if (!bias && p == pseudo && g == gate)
                return offset;
            offset += width(r, p, g) * r->hidden;
        }
    return offset + ((size_t)pseudo * gates(r) + gate) * r->hidden;
}

DNN cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t in, size_t *size)
{
    const struct rnn *r = (const struct rnn *)in;
    (void)handle;
    *size = offset_of(r, r->layers * r->directions, 0, r->bias != CUDNN_RNN_NO_BIAS) * element(r);
    return CUDNN_STATUS_SUCCESS;
}

DNN cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t in, int32_t pseudo, size_t size, const void *space,
                            int32_t gate, cudnnTensorDescriptor_t matrix, void **at, cudnnTensorDescriptor_t bias,
                            void **bias_at)
{
    const struct rnn *r = (const struct rnn *)in;
    int columns = (int)width(r, pseudo, gate);
    (void)handle, (void)size;
    if (matrix && at) {
        *at = (char *)space + offset_of(r, pseudo, gate, false) * element(r);
        cudnnSetTensorNdDescriptor(matrix, r->type, 3, (int[]){1, r->hidden, columns},
                                   (int[]){r->hidden * columns, columns, 1});
    }
    if (bias && bias_at) {
        *bias_at = r->bias == CUDNN_RNN_NO_BIAS ? NULL : (char *)space + offset_of(r, pseudo, gate, true) * element(r);
        cudnnSetTensorNdDescriptor(bias, r->type, 3, (int[]){1, r->hidden, 1}, (int[]){r->hidden, 1, 1});
    }
    return CUDNN_STATUS_SUCCESS;
}

DNN cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              cudnnRNNDataDescriptor_t x, size_t *work, size_t *reserve)
{
    (void)handle, (void)rnn, (void)x;
    if (work)
        *work = 4096;
    if (reserve)
        *reserve = mode == CUDNN_FWD_MODE_TRAINING ? 4096 : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* Convolutions go through the backend interface: one engine is offered for everything, and needs no workspace. */

DNN cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    (void)type;
    return *out = calloc(1, 256), CUDNN_STATUS_SUCCESS;
}

DNN cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t in) { return free(in), CUDNN_STATUS_SUCCESS; }

DNN cudnnBackendGetAttribute(cudnnBackendDescriptor_t const in, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *array)
{
    int64_t n = 0;
    (void)in;
    if (type == CUDNN_TYPE_INT64 && array) {
        memset(array, 0, (size_t)wanted * 8);
        n = wanted;
    } else if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        n = 1;
    }
    if (count)
        *count = n;
    return CUDNN_STATUS_SUCCESS;
}
