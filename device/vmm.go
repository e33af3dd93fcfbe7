package device

// VirtualMemory is implemented by devices that separate addresses from memory, for expandable
// segments (cuMemAddressReserve, cuMemCreate, cuMemMap).
//
// Sizes and addresses are multiples of Granularity. An operation may name a range that spans
// several mappings if they are adjacent in one reservation.
type VirtualMemory interface {
	// Granularity is the unit of reservations and mappings in bytes.
	Granularity() int64
	// Reserve reserves address space without memory (cuMemAddressReserve).
	Reserve(bytes int64) (Ptr, error)
	// Unreserve returns a whole reservation (cuMemAddressFree). Nothing may be mapped in it.
	Unreserve(p Ptr) error
	// Map backs [p, p+bytes), which lies inside one reservation and is unmapped, with new memory
	// (cuMemCreate, cuMemMap, cuMemSetAccess). Too little free memory is an error that wraps
	// [ErrOutOfMemory] and maps nothing. The contents are undefined.
	Map(p Ptr, bytes int64) error
	// Unmap returns the memory of [p, p+bytes) to the driver (cuMemUnmap, cuMemRelease). It waits
	// until queued operations that use the range are done. The range must consist of whole
	// mappings, without gaps.
	Unmap(p Ptr, bytes int64) error
}
