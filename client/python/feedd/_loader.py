"""_loader.py - the loaders: what torch.utils.data.DataLoader is to its user, over a stream of feedd.

Happy path: for batch in loader: take a batch from the daemon -> allocate the framework's arrays -> write them on its
current stream -> give the batch back, at once. One `for` is one epoch; the stream goes on behind it, so that the next
epoch's batches are made while this one ends.
What can fail: the arguments (ValueError, TypeError), and what _errors.py has.
Threads: any, one at a time: a lock.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import weakref
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _autostart, _client, _errors, _ranks, _transforms
from ._dlpack import View
from ._lib import DTYPE_BYTES, DTYPES, NORMALIZE, ORDERS, SHARES, TAILS, NormalizeOptions, check, library

FLOATS = ("float32", "float16", "bfloat16")
TRANSPORTS = ("ipc", "fd", "host")


class BatchInfo(NamedTuple):
    """Of the batch delivered last."""

    epoch: int
    position: int  # of its first sample in the epoch's order, over all ranks
    count: int  # type: ignore[assignment]  # samples, padding included
    valid: int  # the first `valid` samples are real, the others padding (tail="pad")


class Dataset:
    """What scripts ask of loader.dataset: its length and classes."""

    def __init__(self, count: int, classes: Optional[List[str]]):
        self._count, self.classes = count, classes
        self.class_to_idx = {name: number for number, name in enumerate(classes or [])}

    def __len__(self) -> int:
        return self._count


class _Plan:
    """How one field of a batch becomes an array."""

    __slots__ = ("channels_first", "dtype", "dtype_name", "field", "name", "normalize", "out", "sample_bytes", "shape")

    def __init__(self, field: _client.Field, dtype_name: str, dtype: Any, shape: Tuple[int, ...]):
        self.field, self.name, self.shape = field.number, field.name, shape
        self.dtype, self.dtype_name = dtype, dtype_name
        self.normalize: Any = None  # ctypes.byref(NormalizeOptions), or None: it is copied
        self.channels_first = False  # a view of it is turned, since its channels come last
        self.out: Any = None
        self.sample_bytes = DTYPE_BYTES[dtype_name]
        for side in shape:
            self.sample_bytes *= side


class _Loop:
    """One `for` over a loader: one epoch, or what is left of it."""

    __slots__ = ("done", "loader")

    def __init__(self, loader: "DataLoader"):
        self.loader, self.done = loader, False

    def __iter__(self) -> "_Loop":
        return self

    def __next__(self) -> Any:
        return self.loader._next(self)


class DataLoader:
    """Batches of a dataset as torch tensors, from a feedd daemon.

    One line in place of torch.utils.data.DataLoader:

        loader = feedd.DataLoader("/data/imagenet/train", batch_size=256,
                                  transform=[feedd.RandomResizedCrop(224), feedd.RandomHorizontalFlip()],
                                  dtype=torch.float16, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        for epoch in range(90):
            for images, labels in loader:
                ...

    A batch is (image, label) where the dataset has both, else {name: array}; with `fields` always the latter. image:
    {count, channels, height, width} for layout "nchw", {count, height, width, channels} for "nhwc"; uint8 as decoded
    unless dtype says otherwise, or feedd.conf, whose `output` then says the layout too. label: {count} int64 (a list's
    decimal labels: float32). index: {count} int64, the samples' numbers in the dataset. All on `device`, in memory of the
    framework's own, which is the caller's to keep.

    `for` gives one epoch, or after load_state_dict() the rest of one. A loop that is left early is over: the next one
    begins the next epoch (in a group, whose others go on: where that begins for them).

    Args:
        source: a stream or dataset of the daemon's configuration, "name" or "name/split"; or a path (os.PathLike, or a
            text that begins with /, . or ~) of a folder of class folders, or of a list of files.
        batch_size: samples of one batch of this rank.
        device: "cuda" (torch's current device), "cuda:N" or "cpu".
        dtype: None: as the stream is configured, which is mostly uint8 as decoded; float32, float16, bfloat16 (the
            framework's dtype or a name): (x - mean * scale) / (std * scale), without mean x / scale; int8; uint8.
        layout: "nchw" or "nhwc".
        mean, std: a number, or one a channel, in 0..1 as in torchvision; std without mean, or the other way round: 1, 0.
        scale: what 1 stands for in pixels.
        transform: what the daemon makes of each image, in place of what is configured: feedd.RandomResizedCrop(224)...,
            a list of them, or a text as in feedd.conf.
        order: "shuffle" (a new permutation each epoch) or "sequential"; None: as configured.
        seed: of order and augmentation; None: as configured.
        epochs: the stream ends before this epoch, counted from 0; None: never.
        tail: what happens to samples that don't fill a step of all ranks: "drop", "pad" (see `batch.valid`) or
            "partial" (shorter batches); None: as configured.
        rank, world_size: default: those of torch.distributed, else of the launcher (RANK, WORLD_SIZE and LOCAL_RANK;
            Open MPI's; a Slurm step's), else 0 of 1. In a group every member gets every sample: 0 of 1.
        share: "private", or "broadcast": every member of `group` (default: the source's name) gets every batch, from one
            decode. With `members` nothing begins before so many are there.
        subset: the name of a split of the dataset in feedd.conf.
        normalize: who makes dtype and layout. "client": a kernel of this process, on its own stream, of batches that
            are uint8 up to there. "daemon": a kernel of the daemon on the GPU, once for all who read the same. "cpu": the
            daemon's decoding threads, the traditional way. "auto": the client where it can, else the daemon.
        transport: how batches get to the GPU. "ipc": its memory, by CUDA IPC. "fd": its memory, mapped read-only, so that
            a write of this process can't spoil a batch for others. "host": this process copies from the daemon's host
            memory. "auto" (and None: $FEEDD_TRANSPORT, else "auto"): the first of these that works.
        fields: names of those to deliver: "image", "label", "index".
        out: arrays that every batch is written to: (image, label), or {name: array}. For CUDA graphs.
        zero_copy: the batch where the daemon put it: to be read only. uint8; other dtypes where the daemon makes them
            (normalize="daemon" or "cpu"). Keeps a slot of the ring until every tensor of it (views included) is gone; who
            keeps too many gets LeasesError. Unless the daemon makes it, "nchw" is a view with the strides of "nhwc". Work
            on other streams than the current one: record_stream(). Not with transport "host" and a GPU.
        socket: where the daemon listens; default $FEEDD_SOCKET, else the system's.
        autostart: start a private daemon where none is named: True, or a feedd.conf for it (True: $FEEDD_CONFIG, if
            set). One for all processes of this user; it leaves when nobody has used it for a while. A path as source
            implies it.
        resume: a state_dict(), or a token of feedctl: begin there. In a group: for every member.

    Raises:
        DaemonError (none is there: the message says what to do), VersionError, NotFoundError, ArgumentError, TokenError,
        AccessError, DeviceError, OutOfMemoryError, LeasesError, ForkError; all are feedd.Error. A daemon that restarts
        is waited for, a minute long, and nothing is missed or repeated.
    """

    _module = "._torch"

    def __init__(
        self,
        source: Union[str, "os.PathLike[str]"],
        *,
        batch_size: Optional[int],
        device: str = "cuda",
        dtype: Any = None,
        layout: str = "nchw",
        mean: Union[None, float, Sequence[float]] = None,
        std: Union[None, float, Sequence[float]] = None,
        scale: float = 255,
        transform: Any = None,
        order: Optional[str] = "shuffle",
        seed: Optional[int] = 0,
        epochs: Optional[int] = None,
        tail: Optional[str] = "drop",
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        group: Optional[str] = None,
        members: Optional[int] = None,
        share: str = "private",
        subset: Optional[str] = None,
        normalize: str = "auto",
        transport: Optional[str] = None,
        fields: Optional[Sequence[str]] = None,
        out: Union[None, Sequence[Any], Mapping[str, Any]] = None,
        zero_copy: bool = False,
        socket: Union[None, str, "os.PathLike[str]"] = None,
        autostart: Union[bool, str, "os.PathLike[str]"] = False,
        resume: Union[None, str, Mapping[str, Any]] = None,
    ):
        _one_of("layout", layout, ("nchw", "nhwc"))
        _one_of("share", share, SHARES)
        _one_of("order", order, (None, *ORDERS))
        _one_of("tail", tail, (None, *TAILS))
        _one_of("normalize", normalize, NORMALIZE)
        _one_of("transport", transport, (None, "auto", *TRANSPORTS))
        self._framework = self._load(str(device))
        self._library = library()
        self._dtype = _dtype_name(dtype)
        self._nchw = layout == "nchw"
        self._options = _normalize_options(self._dtype, self._nchw, mean, std, scale)
        if zero_copy and out is not None:
            raise ValueError("zero_copy gives the batch where it is: without out")
        if zero_copy and self._dtype != "uint8" and normalize not in ("daemon", "cpu"):
            raise ValueError(f'zero_copy gives the batch as it is, and {self._dtype} has to be made of it: by the daemon '
                             'with normalize="daemon" or "cpu", or without zero_copy')  # fmt: skip
        self._zero_copy = zero_copy
        self._profiling = getattr(self._framework, "profiling", None)
        self._broadcast = share == "broadcast"
        if self._broadcast:
            self.ranks = _ranks.Ranks(rank or 0, world_size or 1, "a group: every member gets every sample")
        else:
            self.ranks = _ranks.find(rank, world_size)
        name, is_path = _source(source, subset)
        self._lock = threading.RLock()
        self._loop: Optional[_Loop] = None
        self._wanted: Optional[int] = None  # what set_epoch() said
        self._skip_to: Optional[int] = None  # of a group: batches of earlier epochs are not delivered
        self._stale = False  # a batch was taken and not delivered: the stream has to be opened again
        self._resumed = resume is not None
        self._client = _client.Client(
            _autostart.finder(socket, autostart, is_path),
            name,
            _open_options(
                batch_size=batch_size, order=order, seed=seed, epochs=epochs, tail=tail, share=share, group=group,
                members=members, ranks=self.ranks, device=self._framework.device_name,
                transform=_transforms.text(transform), resume=None if resume is None else _token(resume),
                transport=transport, normalize=normalize,
                # Its memory is self._options'.
                output=None if dtype is None and normalize == "auto" else self._options.address(),
            ),
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, self._client.handles.close)
        self._token = self._client.token()
        self._at = _client.read_token(self._token)
        self._plan = self._make_plan(fields, out)
        # Where views are, as DLPack names it: kDLCPU, or kDLCUDA and its number.
        schema = self._client.schema
        self._views_on = (1, 0) if schema.views_on_host else (2, schema.device_ordinal)
        if zero_copy:
            self._check_views()

    # ---- what trainers call ----

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            self._check_open()
            epoch = self._begin_at()
            if epoch is not None:
                self._go_to(epoch)
            elif not self._client.is_open:
                self._open(_client.move_token(self._token, *self._at))
            self._wanted, self._resumed = None, False
            self._loop = _Loop(self)
            return self._loop

    def __len__(self) -> int:
        """Batches that this rank gets in a whole epoch."""
        return self._client.schema.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """The next loop is that of this epoch (counted from 0), from its start; directly after load_state_dict() what is
        left of it. Loops go from epoch to epoch also without."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch}: epochs are counted from 0")
        self._wanted = int(epoch)

    def state_dict(self) -> Dict[str, Any]:
        """Where the loader stands after the batch delivered last: the same for all ranks, and good for any number of
        them. The rest is delivered by whoever loads it: every position once."""
        with self._lock:
            return {"version": 1, "token": _client.move_token(self._token, *self._at).decode()}

    def load_state_dict(self, state: Union[str, Mapping[str, Any]]) -> None:
        """The next loop goes on where the state was taken. Raises TokenError for another dataset, order or seed."""
        if self._broadcast:
            raise _errors.make(-15, "a group is under way: pass resume=state to every member's loader instead")
        with self._lock:
            self._check_open()
            self._open(_token(state))
            self._resumed, self._loop = True, None

    @property
    def classes(self) -> Optional[List[str]]:
        """Names of the classes, by label; None where the dataset has none."""
        return self._client.schema.classes

    @property
    def dataset(self) -> Dataset:
        return Dataset(self._client.schema.sample_count, self.classes)

    @property
    def batch_size(self) -> int:
        return self._client.schema.batch_size

    @property
    def batch(self) -> BatchInfo:
        """Of the batch delivered last."""
        info = self._client.info
        return BatchInfo(info.epoch, info.position, info.count, info.valid)

    def path(self, index: int) -> str:
        """The file of a sample; of an IDX dataset file and number. index: as the field "index" has it."""
        with self._lock:
            self._check_open()
            return self._client.path(int(index))

    def stats(self) -> Dict[str, Any]:
        """What was delivered and how, and why so."""
        with self._lock:
            self._check_open()
            counts, schema = self._client.stats(), self._client.schema
        return {
            "batches": counts.batches, "samples": counts.samples, "wait_s": counts.wait_ns / 1e9, "held": counts.held,
            "ready": counts.ready, "depth": schema.depth, "members": counts.members, "reconnects": counts.reconnects,
            "away": bool(counts.away), "rank": self.ranks.rank, "world_size": self.ranks.world_size,
            "rank_source": self.ranks.source, "epoch": self._at[0], "position": self._at[1], "dataset": schema.dataset,
            "share": schema.share, "group": schema.group, "order": schema.order, "tail": schema.tail,
            "seed": schema.seed, "device": schema.device or "host memory", "transport": schema.transport,
            "normalize": schema.normalize, "mode_reason": schema.mode_reason,
            "framework": f"{self._framework.name} {self._framework.version}",
        }  # fmt: skip

    def record_stream(self, stream: Any) -> None:
        """zero_copy: the batch delivered last is also read by work on this stream: a number (cudaStream_t), or a stream
        of torch's or CuPy's. At most four."""
        number = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        with self._lock:
            self._check_open()
            self._client.record(number)

    def close(self) -> None:
        """Gives everything back. Tensors that were delivered stay, those of zero_copy too."""
        self._client.closing = True
        with self._lock:
            self._loop = None
            self._finalizer()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a feedd loader can't be pickled: make one in each process, and hand its state_dict() over")

    def __repr__(self) -> str:
        s = self._client.schema
        return (f"<feedd.{type(self).__name__} {s.dataset}: {s.sample_count} samples, batches of {s.batch_size}, "
                f"{s.steps_per_epoch} an epoch, rank {self.ranks.rank} of {self.ranks.world_size}>")  # fmt: skip

    # ---- opening ----

    def _load(self, device: str) -> Any:
        try:
            return importlib.import_module(self._module, __package__).Framework(device)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"feedd.{type(self).__name__} needs {error.name}, which isn't installed. Other arrays: feedd.DataLoader "
                "(torch), feedd.NumpyLoader, feedd.CupyLoader, feedd.JaxLoader"
            ) from error

    def _make_plan(self, fields: Optional[Sequence[str]], out: Any) -> List[_Plan]:
        schema = self._client.schema
        known = {field.name: field for field in schema.fields}
        self._tuple = fields is None and "image" in known and "label" in known
        names = ["image", "label"] if self._tuple else list(known if fields is None else fields)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise ValueError(f"fields {names}: {schema.dataset} has {', '.join(known)}")
        plan = [self._plan_field(known[name]) for name in names]
        if out is not None:
            arrays = dict(zip(names, out)) if self._tuple and not isinstance(out, Mapping) else out
            if not isinstance(arrays, Mapping) or sorted(arrays) != sorted(names):
                raise ValueError(f"out: one array for each of {', '.join(names)} is needed")
            for one in plan:
                one.out = arrays[one.name]
                self._framework.check_out(one.out, (schema.batch_size, *one.shape), one.dtype)
        return plan

    def _plan_field(self, field: _client.Field) -> _Plan:
        if field.name != "image":
            return _Plan(field, field.dtype, self._framework.dtype(field.dtype), field.shape)
        made = self._client.schema.normalize != "client"  # by the daemon: dtype and layout are the field's
        channels = field.shape[0 if made and self._nchw else 2]
        if self._options.channels not in (None, 1, channels):
            raise ValueError(f"mean and std of {self._options.channels} channels: images have {channels}")
        if made:
            return _Plan(field, field.dtype, self._framework.dtype(field.dtype), field.shape)
        height, width, _ = field.shape
        shape = (channels, height, width) if self._nchw else field.shape
        plan = _Plan(field, self._dtype, self._framework.dtype(self._dtype), shape)
        plan.channels_first = self._nchw
        if self._dtype != "uint8" or (self._nchw and channels > 1):  # else the bytes are what is wanted
            plan.normalize = self._options.reference()
        return plan

    def _check_views(self) -> None:
        """Whether arrays can be where batches are. Raises ValueError."""
        schema = self._client.schema
        if schema.device and schema.views_on_host:
            raise ValueError(f"zero_copy: transport {schema.transport}: batches are in host memory, and the arrays on the "
                             f"GPU can't be there ({schema.mode_reason}); without zero_copy they are copied")  # fmt: skip
        for plan in self._plan:
            if plan.dtype_name in self._framework.no_views_of:
                raise ValueError(f"zero_copy: {self._framework.name} has no views of {plan.dtype_name}, as {plan.name} is")

    def _check_open(self) -> None:
        if not self._finalizer.alive or self._client.closing:
            raise _errors.make(-15, "the loader is closed")

    def _open(self, token: bytes) -> None:
        self._client.open(token)
        self._token = self._client.token()
        self._at = _client.read_token(self._token)
        self._stale = False
        if self._zero_copy:
            self._check_views()

    # ---- where the next loop begins ----

    def _begin_at(self) -> Optional[int]:
        """The epoch whose start the next loop begins at; None: where the stream stands."""
        epoch, position = self._at
        keeps = position == 0 or self._resumed
        if self._wanted is not None and self._wanted != epoch:
            return self._wanted
        return None if keeps else (epoch + 1 if self._wanted is None else epoch)

    def _go_to(self, epoch: int) -> None:
        if self._broadcast:
            self._skip_to = epoch
        else:
            self._open(_client.move_token(self._token, epoch, 0))

    # ---- batches ----

    def _next(self, loop: _Loop) -> Any:
        with self._lock:
            if loop is not self._loop:
                self._check_open()
                raise RuntimeError("this loop is over: another one over the same loader has begun")
            if loop.done:
                raise StopIteration
            if self._stale and not self._broadcast:
                self._open(_client.move_token(self._token, *self._at))
            if self._profiling is not None and self._profiling():
                with self._framework.span("feedd.next"):
                    return self._next_batch(loop)
            return self._next_batch(loop)

    def _next_batch(self, loop: _Loop) -> Any:
        client, info = self._client, self._client.info
        try:
            client.take()
            while self._skip_to is not None and info.epoch < self._skip_to:
                client.release(self._framework.current_stream())
                client.take()
        except StopIteration:
            loop.done = True
            raise
        self._stale = True
        self._skip_to = None
        batch = self._view_batch() if self._zero_copy else self._copy_batch(info.count)
        self._stale = False
        self._at = (info.next_epoch, info.next_position)
        loop.done = info.next_epoch != info.epoch
        return batch

    def _copy_batch(self, count: int) -> Any:
        framework, client, lib = self._framework, self._client, self._library
        stream = framework.current_stream()
        arrays = []
        try:
            for plan in self._plan:
                if plan.out is None:
                    array = framework.empty((count, *plan.shape), plan.dtype)
                else:
                    array = plan.out if len(plan.out) == count else plan.out[:count]
                arrays.append(array)
                bytes_ = count * plan.sample_bytes
                if plan.normalize is not None:
                    status = lib.normalize(client.batch, plan.field, plan.normalize, framework.address(array), bytes_,
                                           stream, client.error_ref)  # fmt: skip
                else:
                    status = lib.batch_copy(client.batch, plan.field, framework.address(array), bytes_, stream,
                                            client.error_ref)  # fmt: skip
                if status != 0:
                    check(status, client.error)
        finally:
            client.release(stream)
        return self._made(arrays)

    def _view_batch(self) -> Any:
        framework, client = self._framework, self._client
        stream = framework.current_stream()
        arrays = []
        try:
            for plan in self._plan:
                array = framework.view(View(client, plan.field, self._views_on, stream))
                arrays.append(framework.channels_first(array) if plan.channels_first else array)
        finally:
            client.release(stream)
        return self._made(arrays)

    def _made(self, arrays: List[Any]) -> Any:
        return tuple(arrays) if self._tuple else {plan.name: array for plan, array in zip(self._plan, arrays)}


class NumpyLoader(DataLoader):
    """DataLoader, with NumPy arrays in host memory; device is "cpu"."""

    _module = "._numpy"

    def __init__(self, source: Union[str, "os.PathLike[str]"], *, device: str = "cpu", **options: Any):
        super().__init__(source, device=device, **options)


class CupyLoader(DataLoader):
    """DataLoader, with CuPy arrays."""

    _module = "._cupy"


class JaxLoader(DataLoader):
    """DataLoader, with JAX arrays: always a copy, so without zero_copy and out. Labels and indices are int32 unless
    jax_enable_x64 is set."""

    _module = "._jax"

    def __init__(self, source: Union[str, "os.PathLike[str]"], **options: Any):
        if options.get("zero_copy") or options.get("out") is not None:
            raise ValueError("JAX arrays are always a copy, of JAX's own: without zero_copy and out")
        super().__init__(source, **options)
        # Runs before the stream is closed: finalizers do so in the reverse order.
        self._settle = weakref.finalize(self, self._framework.settle)

    def close(self) -> None:
        with self._lock:
            self._framework.settle()
        super().close()

    def _copy_batch(self, count: int) -> Any:
        framework, client = self._framework, self._client
        schema = client.schema
        try:
            views = [framework.view(View(client, plan.field, self._views_on, None)) for plan in self._plan]
        finally:
            client.release(None)
        return self._made(framework.convert(views, self._plan, bool(schema.device and schema.views_on_host)))


# ---- arguments ----


def _one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: allowed are {', '.join(repr(one) for one in allowed)}")


def _dtype_name(dtype: Any) -> str:
    """Of a name, or a dtype of any framework."""
    if dtype is None:
        return "uint8"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    name = str(name).rpartition(".")[2]
    _one_of("dtype", name, (*FLOATS, "uint8", "int8"))
    return name


class _Normalize:
    """The options of feedd_normalize(), and for how many channels they are (None: any)."""

    def __init__(self, options: NormalizeOptions, channels: Optional[int]):
        self.options, self.channels = options, channels

    def reference(self) -> Any:
        return ctypes.byref(self.options)

    def address(self) -> int:
        return ctypes.addressof(self.options)


def _normalize_options(dtype: str, nchw: bool, mean: Any, std: Any, scale: float) -> _Normalize:
    if (mean is not None or std is not None) and dtype == "uint8":
        raise ValueError("mean and std go with a dtype of floats, such as dtype='float32'")
    values = [[0.0] if mean is None else _numbers(mean), [1.0] if std is None else _numbers(std)]
    lengths = {len(one) for one in values} - {1}
    if len(lengths) > 1:
        raise ValueError(f"mean has {len(values[0])} values and std {len(values[1])}")
    channels = max(len(one) for one in values)
    four = [one * 4 if len(one) == 1 else [*one, *([1.0] * (4 - len(one)))] for one in values]
    options = NormalizeOptions(size=ctypes.sizeof(NormalizeOptions), dtype=DTYPES[dtype], nchw=nchw, scale=scale)
    options.mean[:], options.std[:] = four[0], four[1]
    return _Normalize(options, None if mean is None and std is None else channels)


def _numbers(values: Any) -> List[float]:
    numbers = [float(value) for value in values] if hasattr(values, "__len__") else [float(values)]
    if not 1 <= len(numbers) <= 4:
        raise ValueError(f"mean and std: {len(numbers)} values; 1 to 4 are possible, one a channel")
    return numbers


def _source(source: Any, subset: Optional[str]) -> Tuple[bytes, bool]:
    """@return the name, and whether it is a path"""
    text = os.fspath(source)
    is_path = not isinstance(source, str) or text.startswith(("/", ".", "~"))
    if subset is not None and (is_path or not isinstance(subset, str) or "/" in text):
        raise ValueError("subset is the name of a split that feedd.conf gives a dataset (`splits:`), and goes with the "
                         "dataset's name")  # fmt: skip
    if is_path:
        text = os.path.abspath(os.path.expanduser(text))
    return os.fsencode(text if subset is None else f"{text}/{subset}"), is_path


def _token(state: Union[str, Mapping[str, Any]]) -> bytes:
    token = state.get("token") if isinstance(state, Mapping) else state
    if not isinstance(token, str):
        raise TypeError("a state is what state_dict() returned, or a token of feedctl's")
    return token.encode()


def _open_options(
    *, batch_size: Any, order: Any, seed: Any, epochs: Any, tail: Any, share: str, group: Any, members: Any,
    ranks: _ranks.Ranks, device: bytes, transform: Optional[str], resume: Optional[bytes], transport: Optional[str],
    normalize: str, output: Optional[int],
) -> Dict[str, Any]:  # fmt: skip
    """The members of feedd_open_options that are given."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size {batch_size}: at least 1")
    options: Dict[str, Any] = {"device": device, "has_epochs": 1, "epochs": epochs or 0, "share": SHARES[share]}
    options.update(rank=ranks.rank, world_size=ranks.world_size)
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs {epochs}: at least 1, or None: no end")
    if seed is not None:
        options.update(has_seed=1, seed=seed)
    optional = {
        "batch_size": batch_size, "order": order and ORDERS[order], "tail": tail and TAILS[tail],
        "group": group and group.encode(), "members": members, "transform": transform and transform.encode(),
        "resume": resume, "transport": transport and transport.encode(), "normalize": NORMALIZE[normalize],
        "output": output,
    }  # fmt: skip
    options.update({name: value for name, value in optional.items() if value is not None})
    return options
