package ranks

// Bytes that a Merger keeps. A map or slice that grows costs at most twice its elements.
const (
	communicatorCost = 512 // without the name
	slotCost         = 64  // of an open operation in its map, which does not shrink
	operationCost    = 64  // of an open operation otherwise
	arrivalCost      = 32
	stepCost         = 192 // and its entries in the map of steps and in the report's sorted list
)

// Units of work of about 20 ns.
const (
	communicatorWork = 50
	rowWork          = 1000 // for each rank on the page
	categoryWork     = 700  // for each category of a rank on the page
	cellWork         = 50   // for each cell of the page's matrix
)
