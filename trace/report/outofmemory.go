package report

import "github.com/cistern-ml/cistern/memcache"

// shortage has the figures of a request that failed. Sizes are bytes, and -1 is unknown.
type shortage struct {
	Owner        int32  `json:"owner"`
	Requested    int64  `json:"requested"`
	Allocated    int64  `json:"allocated"`
	Pending      int64  `json:"pending"`
	Reserved     int64  `json:"reserved"`
	Largest      int64  `json:"largest"` // free block usable by the request
	Free         int64  `json:"free"`    // of the device
	Total        int64  `json:"total"`
	Limit        int64  `json:"limit"`        // of the cache
	OtherStreams int64  `json:"otherStreams"` // free blocks not usable by the request
	OtherSizes   int64  `json:"otherSizes"`
	OtherPools   int64  `json:"otherPools"`
	Graphs       int64  `json:"graphs"` // a part of OtherPools
	Advice       string `json:"advice"`
}

// shortage returns the figures of an error.
func (l *labels) shortage(e *memcache.OutOfMemoryError) *shortage {
	return &shortage{Owner: l.owner(e.Label, nil), Requested: e.Requested, Allocated: e.Allocated, Pending: e.Pending, Reserved: e.Reserved,
		Largest: e.Largest, Free: e.Free, Total: e.Total, Limit: e.Limit, OtherStreams: e.OtherStreams, OtherSizes: e.OtherSizes, OtherPools: e.OtherPools,
		Graphs: e.Graphs, Advice: e.Advice}
}
