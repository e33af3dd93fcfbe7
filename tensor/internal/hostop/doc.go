// Package hostop is the backend of devices whose memory the host can touch: it runs operations by
// the Go functions of package kernel.
//
// A table has a function for each operation and dtype; an empty cell is an error. What the
// functions read and write follows from the roles of the operands, so that a function knows nothing
// of streams.
package hostop
