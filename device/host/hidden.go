package host

import "math/bits"

// A program that works on the host device may fail on a GPU because it touches device memory, which only kernels and
// copies can. To find that without a GPU the device gives out addresses at which the process has nothing.
//
// They are the true ones with a bit set that no address of a process has, on any machine of 64 bits: on amd64
// such an address is not canonical, or beyond what the kernel hands out unasked; on arm64 it is in no table, and the bit is
// below the byte that loads ignore. Either way the processor refuses it, and the Go runtime ends the program.
// The garbage collector sees that it is outside of the heap. Protecting the pages instead would need a system call for each
// allocation, differently on each system, and the kernels would need a second mapping.
//
// Inside this package nothing changes but where segments begin: whatever is named is looked up by the given address, and
// the Go slice that is found has the true one. Pinned memory is the host's, and keeps its address.
const hiddenBit = 54

func (c Config) apart() (uintptr, error) {
	if !c.Inaccessible {
		return 0, nil
	}
	if bits.UintSize < 64 {
		return 0, self.Invalid("New", 0, "memory that is not accessible needs addresses of 64 bits; this machine has %d", bits.UintSize)
	}
	return 1 << (hiddenBit % bits.UintSize), nil
}
