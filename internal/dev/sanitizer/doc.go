// Package sanitizer shows that the race detector finds the mistakes that stream-ordered memory invites.
//
// The program in the folder program makes one of two mistakes, or does the same correctly: it forgets to let
// a consumer's stream wait for the producer's, or to record the consumer's stream on a block that it frees.
// The tests (build tag sanitizer: make sanitizer) build it with -race and run it in six forms, 20 times each:
// every mistake must be reported, every corrected twin must be clean.
package sanitizer
