// Package sanitizer shows that the race detector finds the typical mistakes with stream-ordered
// memory.
//
// The program in the folder program makes one of two mistakes, or does the same correctly: the
// consumer's stream does not wait for the producer's, or the program frees a block without
// recording the consumer's stream on it. The tests (build tag sanitizer: make sanitizer) build it
// with -race and run it in six forms, 20 times each. Every mistake must be reported, and every
// corrected twin must be clean.
package sanitizer
