"""Predictions in integers, for every engine, by NumPy. See `nn.quantize`."""

from mlpkit.checks import check_choice
from mlpkit.nn.fused import operations
from mlpkit.nn.quantize import Quantized, quantize


def integers_of(network, precision, calibration):
    """Return a network's `nn.quantize.Quantized` for "int8", and None for None, or the network's dtype.

    calibration: examples for `quantize`, an array, or a `Quantized` of this network. Raises ValueError for another
    precision or network, what `quantize` raises, and TypeError for int8 without a calibration, or one without int8.
    """
    check_choice("precision", precision or str(network.dtype), (str(network.dtype), "int8"))
    if precision != "int8":
        if calibration is not None:
            raise TypeError('a calibration is for integers: give precision="int8", too.')
        return None
    if calibration is None:
        raise TypeError('precision="int8" needs calibration=X, some hundreds of examples that show ranges.')
    if not isinstance(calibration, Quantized):
        return quantize(network, calibration)
    theirs, ours = [each.of for each in calibration.operations], operations(network)
    if [(of.name, of.shape, of.layer) for of in theirs] != [(of.name, of.shape, of.layer) for of in ours]:
        raise ValueError("these integers are another network's: quantize this one.")
    return calibration


def forward_of(network, precision, calibration):
    """Return a function of a batch, the engine's array, that returns its outputs, the engine's too."""
    engine, integers = network.engine, integers_of(network, precision, calibration)
    return network.forward if integers is None else lambda x: engine.asarray(integers(engine.to_numpy(x)))
