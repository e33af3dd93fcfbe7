package ranks

// Bytes that a Merger keeps. A map or slice that grows costs at most twice its elements.
const (
	communicatorCost = 512 // without the name
	slotCost         = 64  // of an open operation in its map, which does not shrink
	operationCost    = 64  // of an open operation otherwise
	arrivalCost      = 32
	stepCost         = 192 // and its entries in the map of steps and in the report's sorted list
)

// Bytes for a file that is read, for each byte of a line (the line's buffer, and its strings), and
// for each element of a list in a line: twice a trace.StepCollective. The bytes for a line are
// refunded after it was merged.
const (
	bufferCost  = 16 << 10
	byteCost    = 8
	elementCost = 80
)

// Units of work of about 20 ns, besides one for each byte that is read.
const (
	lineWork         = 50
	elementWork      = 24 // for each element of a list in a line
	communicatorWork = 50
	rowWork          = 1000 // for each rank on the page
	categoryWork     = 700  // for each category of a rank on the page
	cellWork         = 50   // for each cell of the page's matrix
)
