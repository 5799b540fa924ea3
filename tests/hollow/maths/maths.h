/* cuBLAS, cuSOLVER and cuDNN that compute nothing (see ../driver/hollow.h), from their public headers.
 *
 * NVIDIA's own builds carry the runtime inside, which does not start on the hollow driver, so these take their place:
 * handles know their device and stream, every computation is one launch into that stream (so a capture records it), and
 * what the caller needs to go on (sizes of workspaces, the layout of RNN weights, an engine for a convolution) is given.
 * build.sh makes a stub of hollow_call() for each further function that torch imports.
 */
#ifndef HOLLOW_MATHS_H
#define HOLLOW_MATHS_H
#define _GNU_SOURCE
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT __attribute__((visibility("default")))

struct handle { struct handle *next; CUstream stream; int dev; int pointer_mode, math_mode; };

void *new_handle(void);
int set_stream(void *handle, CUstream stream);          /* a handle and its stream must be of one device */
int compute(CUstream stream, const char *name);         /* one launch, whatever the computation */
int hollow_call(void *first, const char *name);         /* a computation where the first argument is a handle */

#endif
