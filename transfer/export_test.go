package transfer

import "github.com/cistern-ml/cistern/device"

// NewOfShards is New of a pool with so many shards.
func NewOfShards(dev device.Device, cfg Config, shards int) *Pool { return newPool(dev, cfg, shards) }

// UseShard lets this processor's next calls use shard i.
func (p *Pool) UseShard(i int) {
	p.hints.Get()
	p.hints.Put(p.shards[i%len(p.shards)])
}

// RoundSize is roundSize.
func RoundSize(bytes int64) int64 { return roundSize(bytes) }
