//go:build cuda

// The driver's entry points, which gorgonia.org/cu and this package call by name. They are defined
// here and jump to the functions that dlopen found, so that a program starts on machines without a
// driver. See symbols.go.

#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>

static const char *const names[] = {
#define ENTRY(i, name) #name,
#include "symbols.h"
#undef ENTRY
};

enum { entries = sizeof names / sizeof *names };

static int no_driver(void) { return CUDA_ERROR_NO_DEVICE; }
static int no_function(void) { return CUDA_ERROR_NOT_FOUND; }

__attribute__((visibility("hidden"))) void *cistern_entry[entries] = {[0 ... entries - 1] = (void *)no_driver};

#if defined(__x86_64__)
#define JUMP(i) "jmpq *cistern_entry+8*" #i "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(i) "adrp x16, cistern_entry+8*" #i "\nldr x16, [x16, #:lo12:cistern_entry+8*" #i "]\nbr x16\n"
#else
#error "device/cuda is for amd64 and arm64"
#endif

#define ENTRY(i, name) __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" JUMP(i));
#include "symbols.h"
#undef ENTRY

static void *library;
static int result = -1;
static char problem[256];

// cuInit is called by the init function of gorgonia.org/cu, which ends the process if it fails. So
// it never fails; cistern_init returns the real result.
CUresult cuInit(unsigned int flags) {
	if (result != -1)
		return CUDA_SUCCESS;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (library == NULL) {
		snprintf(problem, sizeof problem, "%s", dlerror());
		result = CUDA_ERROR_NO_DEVICE;
		return CUDA_SUCCESS;
	}
	for (int i = 0; i < entries; i++) {
		void *f = dlsym(library, names[i]);
		cistern_entry[i] = f != NULL ? f : (void *)no_function;
	}
	CUresult (*init)(unsigned int) = (CUresult (*)(unsigned int))dlsym(library, "cuInit");
	result = init != NULL ? (int)init(flags) : CUDA_ERROR_NOT_FOUND;
	return CUDA_SUCCESS;
}

int cistern_init(int *loaded, char *reason, int size) {
	cuInit(0);
	*loaded = library != NULL;
	snprintf(reason, size, "%s", problem);
	return result;
}

void *cistern_symbol(const char *name) { return library != NULL ? dlsym(library, name) : NULL; }
