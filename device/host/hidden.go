package host

import "math/bits"

// A program that works on the host device may fail on a GPU because it accesses device memory
// outside of kernels and copies. To find such accesses without a GPU, an inaccessible device hands
// out addresses at which the process has no memory.
//
// They are the true addresses with a bit set that no address of a process has on a 64-bit machine.
// On amd64 such an address is not canonical, or beyond those that the kernel hands out by default.
// On arm64 no table maps it, and the bit is below the byte that loads ignore. Either way the
// processor faults and the Go runtime ends the program. The garbage collector recognizes that the
// address is outside of the heap. Protecting the pages instead would need a system call for each
// allocation, different on each system, and a second mapping for the kernels.
//
// Inside this package only the base addresses of segments change: look-ups use the hidden address,
// and the Go slice that they find has the true one. Pinned memory belongs to the host and keeps its
// address.
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
